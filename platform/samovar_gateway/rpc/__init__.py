"""gRPC: the Open Inference Protocol as `inference.GRPCInferenceService`, with health and reflection.

    relay.py        connections of clients, handed on to the server within; says GOAWAY when this gateway leaves
    frames.py       where one HTTP/2 frame ends and the next begins        (pure)
    server.py       all of it made, started, drained and closed
    service.py      the methods that ask once and are answered once
    stream.py       ModelStreamInfer
    asking.py       from a request to what is asked of a function, for both
    exchange.py     one call of a client: its metadata, its deadline, how it is told of an error
    health.py       grpc.health.v1
    translation.py  requests and answers as messages                       (pure)
    peeling.py      tensors in messages without copies of them             (pure)
    schema.py       the classes of messages, of open_inference.proto
    statuses.py     our errors as gRPC's status codes                      (pure)

What is asked and answered is `samovar_gateway.inference`'s business, as it is for REST.
"""
