"""Routes of Daytona's API that this server does not support: each answers 501, which a 404 would not say."""

from __future__ import annotations

from corral.server.faults import unsupported
from corral.server.routing import ApiCall, Method, Scope, Table
from corral.server.wire.control import ErrorResponse

_ONE = "/sandbox/{sandboxIdOrName}"
_PREVIEW = "/preview/{sandboxIdOrName}"
_ORGANISATION = "/organizations/{organizationId}"
_KEYS = "managing API keys (use `corral key` on the server)"
_RUNNERS = "separate runners"
_CONTROL: tuple[tuple[str, Method, str, str, Scope], ...] = (
    ("get_build_logs_url", "GET", _ONE + "/build-logs-url", "building images", "read"),
    ("get_build_logs", "GET", _ONE + "/build-logs", "building images", "read"),
    ("create_backup", "POST", _ONE + "/backup", "backups", "write"),
    ("get_sandbox_forks", "GET", _ONE + "/forks", "listing forks", "read"),
    ("get_sandbox_parent", "GET", _ONE + "/parent", "listing forks", "read"),
    ("get_sandbox_ancestors", "GET", _ONE + "/ancestors", "listing forks", "read"),
    ("get_sandbox_logs", "GET", _ONE + "/telemetry/logs", "collecting logs", "read"),
    ("get_sandbox_traces", "GET", _ONE + "/telemetry/traces", "collecting traces", "read"),
    ("get_sandbox_trace_spans", "GET", _ONE + "/telemetry/traces/{traceId}", "collecting traces", "read"),
    ("resolve_sandbox_secrets", "GET", _ONE + "/secrets", "reading secrets over HTTP", "read"),
    ("get_organization_by_sandbox_id", "GET", _ONE + "/organization", _RUNNERS, "read"),
    ("get_region_quota_by_sandbox_id", "GET", _ONE + "/region-quota", _RUNNERS, "read"),
    ("update_sandbox_state", "PUT", _ONE + "/state", _RUNNERS, "write"),
    ("get_sandboxes_for_runner", "GET", "/sandbox/for-runner", _RUNNERS, "read"),
    ("get_preview_signing_key", "GET", _PREVIEW + "/signing-key", "a separate proxy for previews", "read"),
    ("create_ssh_access", "POST", _ONE + "/ssh-access", "SSH", "run"),
    ("revoke_ssh_access", "DELETE", _ONE + "/ssh-access", "SSH", "run"),
    ("validate_ssh_access", "GET", "/sandbox/ssh-access/validate", "SSH", "read"),
    ("get_push_access", "GET", "/object-storage/push-access", "object storage", "write"),
    ("get_registry_push_access", "GET", "/docker-registry/registry-push-access", "pushing images", "write"),
    ("list_registries", "GET", "/docker-registry", "image registries", "read"),
    ("create_registry", "POST", "/docker-registry", "image registries", "write"),
    ("get_registry", "GET", "/docker-registry/{id}", "image registries", "read"),
    ("update_registry", "PATCH", "/docker-registry/{id}", "image registries", "write"),
    ("delete_registry", "DELETE", "/docker-registry/{id}", "image registries", "delete"),
    ("list_api_keys", "GET", "/api-keys", _KEYS, "read"),
    ("create_api_key", "POST", "/api-keys", _KEYS, "write"),
    ("get_api_key", "GET", "/api-keys/{name}", _KEYS, "read"),
    ("delete_api_key", "DELETE", "/api-keys/{name}", _KEYS, "delete"),
    ("delete_api_key_for_user", "DELETE", "/api-keys/{userId}/{name}", _KEYS, "delete"),
    ("list_warm_pools", "GET", "/warm-pools", "warm pools", "read"),
    ("create_warm_pool", "POST", "/warm-pools", "warm pools", "write"),
    ("update_warm_pool", "PATCH", "/warm-pools/{id}", "warm pools", "write"),
    ("delete_warm_pool", "DELETE", "/warm-pools/{id}", "warm pools", "delete"),
)  # fmt: skip
_PEOPLE: tuple[tuple[str, Method, str], ...] = (
    ("create_organization", "POST", "/organizations"),
    ("delete_organization", "DELETE", _ORGANISATION),
    ("leave_organization", "POST", _ORGANISATION + "/leave"),
    ("get_organization_usage_overview", "GET", _ORGANISATION + "/usage"),
    ("get_gpu_capacity", "GET", _ORGANISATION + "/gpu-capacity"),
    ("set_organization_default_region", "PATCH", _ORGANISATION + "/default-region"),
    ("update_organization_default_queue_timeout", "PATCH", _ORGANISATION + "/default-queue-timeout"),
    ("update_experimental_config", "PUT", _ORGANISATION + "/experimental-config"),
    ("get_organization_otel_config", "GET", _ORGANISATION + "/otel-config"),
    ("update_organization_otel_config", "PUT", _ORGANISATION + "/otel-config"),
    ("delete_organization_otel_config", "DELETE", _ORGANISATION + "/otel-config"),
    ("get_organization_otel_config_by_sandbox_auth_token", "GET",
     "/organizations/otel-config/by-sandbox-auth-token/{authToken}"),
    ("get_sandbox_identity_by_sandbox_auth_token", "GET",
     "/organizations/sandbox-identity/by-sandbox-auth-token/{authToken}"),
    ("list_organization_members", "GET", _ORGANISATION + "/users"),
    ("delete_organization_member", "DELETE", _ORGANISATION + "/users/{userId}"),
    ("update_access_for_organization_member", "POST", _ORGANISATION + "/users/{userId}/access"),
    ("list_organization_roles", "GET", _ORGANISATION + "/roles"),
    ("create_organization_role", "POST", _ORGANISATION + "/roles"),
    ("update_organization_role", "PUT", _ORGANISATION + "/roles/{roleId}"),
    ("delete_organization_role", "DELETE", _ORGANISATION + "/roles/{roleId}"),
    ("list_my_invitations", "GET", "/organizations/invitations"),
    ("count_my_invitations", "GET", "/organizations/invitations/count"),
    ("accept_organization_invitation", "POST", "/organizations/invitations/{invitationId}/accept"),
    ("decline_organization_invitation", "POST", "/organizations/invitations/{invitationId}/decline"),
    ("list_organization_invitations", "GET", _ORGANISATION + "/invitations"),
    ("create_organization_invitation", "POST", _ORGANISATION + "/invitations"),
    ("update_organization_invitation", "PUT", _ORGANISATION + "/invitations/{invitationId}"),
    ("cancel_organization_invitation", "POST", _ORGANISATION + "/invitations/{invitationId}/cancel"),
    ("list_identity_providers", "GET", _ORGANISATION + "/identity-providers"),
    ("create_identity_provider", "POST", _ORGANISATION + "/identity-providers"),
    ("get_identity_provider", "GET", _ORGANISATION + "/identity-providers/{id}"),
    ("update_identity_provider", "PATCH", _ORGANISATION + "/identity-providers/{id}"),
    ("delete_identity_provider", "DELETE", _ORGANISATION + "/identity-providers/{id}"),
    ("test_identity_provider", "POST", _ORGANISATION + "/identity-providers/test-connection"),
    ("create_identity_portal_link", "POST", _ORGANISATION + "/identity-providers/workos-admin-portal-link"),
    ("list_identity_connections", "GET", _ORGANISATION + "/identity-providers/workos-sso-connections"),
    ("create_region", "POST", "/regions"), ("update_region", "PATCH", "/regions/{id}"),
    ("delete_region", "DELETE", "/regions/{id}"),
    ("regenerate_proxy_api_key", "POST", "/regions/{id}/regenerate-proxy-api-key"),
    ("regenerate_snapshot_manager_credentials", "POST", "/regions/{id}/regenerate-snapshot-manager-credentials"),
    ("regenerate_ssh_gateway_api_key", "POST", "/regions/{id}/regenerate-ssh-gateway-api-key"),
    ("get_authenticated_user", "GET", "/users/me"),
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


def _refuse(table: Table, method: Method, path: str, *, name: str, what: str, scope: Scope | None = None) -> None:
    async def refuse(call: ApiCall) -> None:
        raise unsupported(what)

    refuse.__name__ = name
    refuse.__doc__ = f"Not supported: {what}."
    table.add(method, path, scope=scope, answers={501: ErrorResponse})(refuse)


for _name, _method, _path, _what, _scope in _CONTROL:
    _refuse(CONTROL, _method, _path, name=_name, what=_what, scope=_scope)
for _name, _method, _path in _PEOPLE:
    _refuse(CONTROL, _method, _path, name=_name, what="managing organisations, people and regions")
for _name, _method, _path in _DESKTOP:
    _refuse(TOOLBOX, _method, "/computeruse" + _path, name=_name, what="computer use")
for _name, _method, _path in _LANGUAGE_SERVERS:
    _refuse(TOOLBOX, _method, "/lsp" + _path, name=_name, what="language servers")
