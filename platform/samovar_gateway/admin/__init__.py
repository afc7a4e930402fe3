"""The admin side of the gateway: deploys, uploads, scaling, keys and what operators look at."""
