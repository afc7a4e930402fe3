-- KEYS: sv:jobs:workers hash worker → beats; sv:jobs:takes:{worker} hash. ARGV: worker, "1" if it may be new. Returns its
-- beats, 0 if it is unknown.
if ARGV[2] == '1' then
  redis.call('HSET', KEYS[2], 'alive', 1)
elseif redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  return 0
end
return redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
