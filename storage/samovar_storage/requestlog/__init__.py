"""The request log: one record per invocation, from a gateway's memory to Parquet files in object storage."""
