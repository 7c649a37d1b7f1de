package setup

import (
	"context"
	"strings"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/enrol"
	"github.com/detour-collective/dcol/internal/membership"
)

// Joining holds the options for joining.
type Joining struct {
	Line       enrol.Line
	Name       string
	ClientOnly bool // without the waypoint role
}

// Join makes this host a member. It generates the key, which never leaves the host. If a
// coordinator refuses, the error is an *enrol.Refusal. It may be called again with the same
// invitation, because the coordinator recognises the key.
func (h Host) Join(ctx context.Context, j Joining) (*Membership, error) {
	unlock, err := h.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	request, lans, err := h.request(j.Name)
	if err != nil {
		return nil, err
	}
	welcome, err := enrol.Join(ctx, j.Line, request, lans)
	if err != nil {
		return nil, err
	}
	if err := h.writeIdentity([]byte(welcome.Chain), []byte(welcome.Roots), []byte(welcome.Lists)); err != nil {
		return nil, err
	}
	c := configuration{By: "join", Collective: j.Line.Collective, Name: j.Name, Roles: []string{string(config.RoleClient)}}
	for _, at := range welcome.Coordinators {
		c.Coordinators = append(c.Coordinators, at.String())
	}
	if !j.ClientOnly {
		c.Roles = append(c.Roles, string(config.RoleWaypoint))
	}
	// The agent keeps this file beside its copy of the directory. One of another collective is
	// useless.
	where := config.Config{StateDir: h.State}
	if err := membership.EnrolmentOf(*welcome).Save(where.CollectiveDir()); err != nil {
		return nil, err
	}
	if err := h.writeConfiguration(c); err != nil {
		return nil, err
	}
	return h.Member()
}

// MemberName returns a member name made from the first part of a host's name, or "" if that is
// impossible.
func MemberName(hostname string) string {
	first, _, _ := strings.Cut(strings.ToLower(hostname), ".")
	name := strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' || '0' <= r && r <= '9' {
			return r
		}
		return '-'
	}, first)
	name = strings.Trim(name[:min(len(name), 63)], "-")
	if name == "localhost" || collective.CheckName(name) != nil {
		return ""
	}
	return name
}
