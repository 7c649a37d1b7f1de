package agent

import (
	"context"
	"errors"

	"github.com/detour-collective/dcol/internal/api"
)

var errNoCoordinator = errors.New("this host is no coordinator: ask on the one where `dcol init` was run")

// Invite implements api.Agent.
func (a *running) Invite(context.Context, api.InviteRequest) (api.Invitation, error) {
	return api.Invitation{}, errNoCoordinator
}

// Expel implements api.Agent.
func (a *running) Expel(context.Context, api.ExpelRequest) (api.Expulsion, error) {
	return api.Expulsion{}, errNoCoordinator
}
