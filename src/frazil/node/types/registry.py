"""Types of the schema registry that doors translate: doors import only the Node, not the layers below."""

from frazil.registry.records import TopicSchemaRecord
from frazil.registry.registry import SUBJECT_BYTES_MAX, SchemaRegistry, SchemaVersion, check_subject
from frazil.registry.topics import TopicSchemas

__all__ = ["SUBJECT_BYTES_MAX", "SchemaRegistry", "SchemaVersion", "TopicSchemaRecord", "TopicSchemas", "check_subject"]
