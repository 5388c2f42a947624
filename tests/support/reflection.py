"""A database's schema as the database itself tells it, in a form that can be compared."""

from typing import Any

from sqlalchemy import Connection, Engine, inspect

VERSIONS = "alembic_version"
OPTIONS_OF_POSTGRESQL = """
    SELECT 'table', relname, '', concat_ws(' ', relkind, relpersistence, array_to_string(reloptions, ',')) FROM pg_class
     WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'v', 'm', 'p', 'S')
    UNION ALL
    SELECT 'column', relname, attname, concat_ws(' ', attstorage, attcompression, attidentity, attgenerated)
      FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
     WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND attnum > 0 AND NOT attisdropped
    UNION ALL
    SELECT 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
     WHERE connamespace = 'public'::regnamespace
    UNION ALL
    SELECT 'index', tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'
    UNION ALL
    SELECT 'trigger', tgrelid::regclass::text, tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
    UNION ALL
    SELECT 'view', viewname, '', definition FROM pg_views WHERE schemaname = 'public'
"""
OPTIONS_OF_SQLITE = """
    SELECT 'table', name, '', type || ' without_rowid=' || wr || ' strict=' || strict FROM pragma_table_list WHERE name NOT LIKE 'sqlite%'
    UNION ALL
    SELECT type, tbl_name, name, sql FROM sqlite_master WHERE type NOT IN ('table', 'index') OR (type = 'index' AND sql IS NOT NULL)
    UNION ALL
    SELECT 'foreign key', owner.name, "from" || ' ' || "table" || ' ' || coalesce("to", ''), on_update || ' ' || on_delete || ' ' || "match"
      FROM sqlite_master AS owner JOIN pragma_foreign_key_list(owner.name) WHERE owner.type = 'table'
"""

Facts = dict[tuple[str, ...], Any]


def facts(source: Engine | Connection) -> Facts:
    """Everything about the schema but the order of columns: (what, table, name) -> how it is. The versions' own table is left out."""
    if isinstance(source, Engine):
        with source.connect() as connection:
            return facts(connection)
    found = _inspected(source) | _options(source)
    return {place: fact for place, fact in found.items() if place[1] != VERSIONS}


def _inspected(connection: Connection) -> Facts:
    inspector = inspect(connection)
    found: Facts = {}
    for table in inspector.get_table_names():
        found["table", table] = True
        for column in inspector.get_columns(table):
            kind = str(column["type"].compile(dialect=connection.dialect))
            # A primary key of SQLite says here whether it is the row's own number.
            found["column", table, column["name"]] = (kind, column["nullable"], str(column["default"]), column.get("autoincrement"))
        key = inspector.get_pk_constraint(table)
        found["primary key", table] = (key["name"], tuple(key["constrained_columns"]))
        for foreign in inspector.get_foreign_keys(table):
            target = (foreign["referred_table"], tuple(foreign["referred_columns"]), tuple(sorted(foreign["options"].items())))
            found["foreign key", table, str(foreign["name"])] = (tuple(foreign["constrained_columns"]), *target)
        for unique in inspector.get_unique_constraints(table):
            found["unique", table, str(unique["name"])] = tuple(unique["column_names"])
        for index in inspector.get_indexes(table):
            found["index", table, str(index["name"])] = (tuple(index["column_names"]), bool(index["unique"]))
        for check in inspector.get_check_constraints(table):
            found["check", table, str(check["name"])] = check["sqltext"]
    return found


def _options(connection: Connection) -> Facts:
    """What the inspector does not tell: storage, compression, kinds of table, conditions of indexes, views and triggers."""
    query = OPTIONS_OF_POSTGRESQL if connection.dialect.name == "postgresql" else OPTIONS_OF_SQLITE
    return {(f"{what} as kept", table, name): fact for what, table, name, fact in connection.exec_driver_sql(query)}


def unlike(one: Facts, other: Facts) -> list[str]:
    """Each fact that the two do not share, as a sentence."""
    places = sorted({*one, *other})
    return [f"{' '.join(at)}: {one.get(at, 'nothing')} | {other.get(at, 'nothing')}" for at in places if one.get(at) != other.get(at)]
