"""The schema, as numbered steps. A step that was released is never changed; new ones are added at the end."""

from __future__ import annotations

MIGRATIONS: tuple[str, ...] = (
    # 1
    """
    CREATE TABLE organisations (
        id TEXT PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        created_at REAL NOT NULL,
        max_sandboxes INTEGER,
        max_cpu INTEGER,
        max_memory_gib INTEGER,
        max_disk_gib INTEGER
    ) STRICT;
    CREATE TABLE keys (
        id TEXT PRIMARY KEY,
        organisation_id TEXT NOT NULL REFERENCES organisations (id) ON DELETE CASCADE,
        name TEXT NOT NULL,
        prefix TEXT NOT NULL,
        digest BLOB NOT NULL UNIQUE,
        scopes TEXT NOT NULL,
        created_at REAL NOT NULL,
        expires_at REAL,
        revoked_at REAL
    ) STRICT;
    CREATE TABLE sandboxes (
        id TEXT PRIMARY KEY,
        organisation_id TEXT NOT NULL REFERENCES organisations (id),
        name TEXT NOT NULL,
        engine_id TEXT,
        snapshot TEXT,
        user TEXT NOT NULL,
        env TEXT NOT NULL,
        set_env TEXT NOT NULL,
        labels TEXT NOT NULL,
        public INTEGER NOT NULL,
        target TEXT NOT NULL,
        cpu INTEGER NOT NULL,
        memory INTEGER NOT NULL,
        disk INTEGER NOT NULL,
        state TEXT NOT NULL,
        desired_state TEXT NOT NULL,
        intent TEXT,
        error_reason TEXT,
        network_block_all INTEGER NOT NULL,
        auto_stop INTEGER NOT NULL,
        auto_pause INTEGER NOT NULL,
        auto_archive INTEGER NOT NULL,
        auto_delete INTEGER NOT NULL,
        destroy_at REAL,
        created_at REAL NOT NULL,
        updated_at REAL NOT NULL,
        active_at REAL NOT NULL,
        state_at REAL NOT NULL,
        signing_key BLOB NOT NULL,
        UNIQUE (organisation_id, name)
    ) STRICT;
    CREATE TABLE snapshots (
        id TEXT PRIMARY KEY,
        organisation_id TEXT REFERENCES organisations (id),
        name TEXT NOT NULL,
        engine_id TEXT,
        image_name TEXT,
        state TEXT NOT NULL,
        cpu INTEGER NOT NULL,
        memory INTEGER NOT NULL,
        disk INTEGER NOT NULL,
        entrypoint TEXT,
        source_sandbox_id TEXT,
        error_reason TEXT,
        intent TEXT,
        created_at REAL NOT NULL,
        updated_at REAL NOT NULL,
        used_at REAL,
        UNIQUE (organisation_id, name)
    ) STRICT;
    """,
    # 2: the request that created a sandbox
    """
    ALTER TABLE sandboxes ADD COLUMN request_token TEXT;
    """,
    # 3: hosts that git credentials may be sent to
    """
    ALTER TABLE sandboxes ADD COLUMN git_hosts TEXT NOT NULL DEFAULT '[]';
    """,
    # 4: the user that programs run as in sandboxes created from a snapshot
    """
    ALTER TABLE snapshots ADD COLUMN user TEXT;
    """,
    # 5: secrets, and the sandboxes that use them
    """
    CREATE TABLE secrets (
        id TEXT PRIMARY KEY,
        organisation_id TEXT NOT NULL REFERENCES organisations (id) ON DELETE CASCADE,
        name TEXT NOT NULL,
        description TEXT,
        placeholder TEXT NOT NULL UNIQUE,
        hosts TEXT NOT NULL,
        header TEXT NOT NULL,
        sealed BLOB NOT NULL,
        created_at REAL NOT NULL,
        updated_at REAL NOT NULL,
        UNIQUE (organisation_id, name)
    ) STRICT;
    ALTER TABLE sandboxes ADD COLUMN secrets TEXT NOT NULL DEFAULT '{}';
    """,
    # 6: the volumes that a sandbox mounts
    """
    ALTER TABLE sandboxes ADD COLUMN volumes TEXT NOT NULL DEFAULT '[]';
    """,
    # 7: what sandboxes may reach, and what keys permit
    """
    ALTER TABLE sandboxes ADD COLUMN network_allow_list TEXT;
    ALTER TABLE sandboxes ADD COLUMN domain_allow_list TEXT;
    ALTER TABLE sandboxes ADD COLUMN network_ceiling TEXT;
    ALTER TABLE keys ADD COLUMN network TEXT;
    """,
    # 8: previews: the loopback addresses of ports, and signed links
    """
    CREATE TABLE previews (
        id TEXT PRIMARY KEY,
        sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
        port INTEGER NOT NULL,
        address TEXT NOT NULL,
        created_at REAL NOT NULL
    ) STRICT;
    CREATE TABLE preview_links (
        id TEXT PRIMARY KEY,
        sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
        port INTEGER NOT NULL,
        key_id TEXT NOT NULL REFERENCES keys (id) ON DELETE CASCADE,
        user INTEGER,
        expires_at REAL NOT NULL
    ) STRICT;
    """,
)
