-- One row per fact about the export: EXPORT_PRODUCT_VERSION, EXPORT_SCHEMA_VERSION and more.
select {name} as name, {value} as value from META_DATA_EXPORT limit 1000
