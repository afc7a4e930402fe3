-- KEYS: sv:jobs:workers hash worker → beats. ARGV: worker, "1" if it may be new. Returns its beats, 0 if unknown.
if ARGV[2] == '0' and redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
return redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
