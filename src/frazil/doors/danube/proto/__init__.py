"""Danube's protocol definitions. The files keep Danube's names: a process that also loads Danube's own client registers
the same descriptors twice, which protobuf allows only if they are equal."""
