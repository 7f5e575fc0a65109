"""Routes of the wire that this server does not have: each says so, which a 404 would not."""

from __future__ import annotations

from corral.server.faults import not_here
from corral.server.routing import Call, Handler, Method, Scope, Table
from corral.server.wire.control import ErrorResponse

_ONE = "/sandbox/{sandboxIdOrName}"
_CONTROL: tuple[tuple[str, Method, str, str, Scope], ...] = (
    ("get_build_logs_url", "GET", _ONE + "/build-logs-url", "building images", "read"),
    ("update_network_settings", "POST", _ONE + "/network-settings", "changing the network", "write"),
    ("update_sandbox_secrets", "PUT", _ONE + "/secrets", "secrets", "write"),
    ("get_signed_port_preview_url", "GET", _ONE + "/ports/{port}/signed-preview-url", "previews", "read"),
    ("expire_signed_port_preview_url", "POST", _ONE + "/ports/{port}/signed-preview-url/{token}/expire",
     "previews", "write"),
    ("create_ssh_access", "POST", _ONE + "/ssh-access", "SSH", "run"),
    ("revoke_ssh_access", "DELETE", _ONE + "/ssh-access", "SSH", "run"),
    ("validate_ssh_access", "GET", "/sandbox/ssh-access/validate", "SSH", "read"),
    ("get_push_access", "GET", "/object-storage/push-access", "object storage", "write"),
    ("get_registry_push_access", "GET", "/docker-registry/registry-push-access", "pushing images", "write"),
    ("list_secrets", "GET", "/secret", "secrets", "read"),
    ("list_secrets_paginated", "GET", "/secret/paginated", "secrets", "read"),
    ("create_secret", "POST", "/secret", "secrets", "write"),
    ("get_secret", "GET", "/secret/{secretId}", "secrets", "read"),
    ("update_secret", "PATCH", "/secret/{secretId}", "secrets", "write"),
    ("delete_secret", "DELETE", "/secret/{secretId}", "secrets", "delete"),
    ("list_volumes", "GET", "/volumes", "volumes", "read"),
    ("create_volume", "POST", "/volumes", "volumes", "write"),
    ("get_volume", "GET", "/volumes/{volumeId}", "volumes", "read"),
    ("get_volume_by_name", "GET", "/volumes/by-name/{name}", "volumes", "read"),
    ("delete_volume", "DELETE", "/volumes/{volumeId}", "volumes", "delete"),
    ("list_warm_pools", "GET", "/warm-pools", "warm pools", "read"),
    ("create_warm_pool", "POST", "/warm-pools", "warm pools", "write"),
    ("update_warm_pool", "PATCH", "/warm-pools/{id}", "warm pools", "write"),
    ("delete_warm_pool", "DELETE", "/warm-pools/{id}", "warm pools", "delete"),
)  # fmt: skip
_DESKTOP: tuple[tuple[str, Method, str], ...] = (
    ("click", "POST", "/mouse/click"), ("drag", "POST", "/mouse/drag"), ("scroll", "POST", "/mouse/scroll"),
    ("move_mouse", "POST", "/mouse/move"), ("mouse_down", "POST", "/mouse/down"), ("mouse_up", "POST", "/mouse/up"),
    ("get_mouse_position", "GET", "/mouse/position"),
    ("type_text", "POST", "/keyboard/type"), ("press_key", "POST", "/keyboard/key"),
    ("press_hotkey", "POST", "/keyboard/hotkey"), ("key_down", "POST", "/keyboard/down"),
    ("key_up", "POST", "/keyboard/up"),
    ("take_screenshot", "GET", "/screenshot"), ("take_region_screenshot", "GET", "/screenshot/region"),
    ("take_compressed_screenshot", "GET", "/screenshot/compressed"),
    ("take_compressed_region_screenshot", "GET", "/screenshot/region/compressed"),
    ("get_display_info", "GET", "/display/info"), ("get_windows", "GET", "/display/windows"),
    ("start_computer_use", "POST", "/start"), ("stop_computer_use", "POST", "/stop"),
    ("get_computer_use_status", "GET", "/process-status"), ("get_computer_use_system_status", "GET", "/status"),
    ("get_process_status", "GET", "/process/{processName}/status"),
    ("get_process_logs", "GET", "/process/{processName}/logs"),
    ("get_process_errors", "GET", "/process/{processName}/errors"),
    ("restart_process", "POST", "/process/{processName}/restart"),
    ("list_recordings", "GET", "/recordings"), ("start_recording", "POST", "/recordings/start"),
    ("stop_recording", "POST", "/recordings/stop"), ("get_recording", "GET", "/recordings/{id}"),
    ("delete_recording", "DELETE", "/recordings/{id}"), ("download_recording", "GET", "/recordings/{id}/download"),
    ("get_accessibility_tree", "GET", "/a11y/tree"), ("find_accessibility_nodes", "POST", "/a11y/find"),
    ("focus_accessibility_node", "POST", "/a11y/node/focus"),
    ("invoke_accessibility_node", "POST", "/a11y/node/invoke"),
    ("set_accessibility_node_value", "POST", "/a11y/node/value"),
)  # fmt: skip
_LANGUAGE_SERVERS: tuple[tuple[str, Method, str], ...] = (
    ("start_lsp", "POST", "/start"), ("stop_lsp", "POST", "/stop"), ("did_open", "POST", "/did-open"),
    ("did_close", "POST", "/did-close"), ("completions", "POST", "/completions"),
    ("document_symbols", "GET", "/document-symbols"), ("workspace_symbols", "GET", "/workspacesymbols"),
)  # fmt: skip

CONTROL = Table("control")
TOOLBOX = Table("toolbox")


def _refusal(name: str, what: str) -> Handler:
    async def refuse(call: Call) -> None:
        raise not_here(what)

    refuse.__name__ = name
    refuse.__doc__ = f"Not here: {what}."
    return refuse


for _name, _method, _path, _what, _scope in _CONTROL:
    CONTROL.add(_method, _path, scope=_scope, answers={501: ErrorResponse})(_refusal(_name, _what))
for _name, _method, _path in _DESKTOP:
    TOOLBOX.add(_method, "/computeruse" + _path, scope="run", answers={501: ErrorResponse})(
        _refusal(_name, "computer use")
    )
for _name, _method, _path in _LANGUAGE_SERVERS:
    TOOLBOX.add(_method, "/lsp" + _path, scope="run", answers={501: ErrorResponse})(_refusal(_name, "language servers"))
