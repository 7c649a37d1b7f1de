package api

import (
	"context"
	"net/http"
	"net/netip"
	"time"
)

// MembersSchema is the version of Members.
const MembersSchema = "dcol.members/1"

// Members is who is in the collective, as this member knows. A coordinator knows more: who was expelled,
// and whose record is not there yet.
type Members struct {
	Schema     string   `json:"schema"`
	Collective string   `json:"collective"`
	Self       string   `json:"self"`    // who answers
	Behind     bool     `json:"behind"`  // changes may be missing: no coordinator has said that there are none
	Members    []Member `json:"members"` // by name
}

// Member is one of them, mostly as it says itself.
type Member struct {
	Name      string       `json:"name"`
	Roles     []string     `json:"roles"`
	Kinds     []string     `json:"kinds"` // of detours that it offers
	Addresses []netip.Addr `json:"addresses"`
	Port      uint16       `json:"port,omitempty"`
	Punch     bool         `json:"punch,omitempty"` // others are let in by hole punching only
	Region    string       `json:"region,omitempty"`
	Capacity  uint64       `json:"capacity_bps,omitempty"` // that it gives; 0: not said
	Subnet    netip.Prefix `json:"subnet,omitzero"`        // in the collective's VPN
	// CertificateUntil is the end of its certificate, RecordIssued when it last said something of itself, and
	// RecordUntil how long that counts; zero: not known.
	CertificateUntil time.Time `json:"certificate_until,omitzero"`
	RecordIssued     time.Time `json:"record_issued,omitzero"`
	RecordUntil      time.Time `json:"record_until,omitzero"`
	// Reachable is what coordinators found out of a waypoint; nil: nothing. A coordinator says by whom, in
	// Reach.
	Reachable *bool  `json:"reachable,omitempty"`
	Reach     *Reach `json:"reach,omitempty"`
	// Used: this host has chosen it as a waypoint.
	Used bool `json:"used,omitempty"`
	// Joined is known to coordinators only, as are those that were expelled.
	Joined time.Time `json:"joined,omitzero"`
	// Enforces is whether a waypoint has confirmed that it refuses all who are expelled; nil: nothing was heard of
	// that. Coordinators know it.
	Enforces *bool `json:"enforces,omitempty"`
	// Expelled and Why are there when it is a member no more.
	Expelled time.Time `json:"expelled,omitzero"`
	Why      string    `json:"why,omitempty"`
}

// Reach is what members found that tried to reach a waypoint.
type Reach struct {
	Yes int       `json:"yes"` // to whom it answered
	Of  int       `json:"of"`  // who tried
	At  time.Time `json:"at"`
	// By are those to whom it answered; if it answered nobody, those who tried.
	By  []string `json:"by"`
	Why string   `json:"why,omitempty"` // it is not reachable, in the words of one
}

// InviteRequest asks a coordinator for a line that lets one host join.
type InviteRequest struct {
	Name            string  `json:"name,omitempty"` // that the host must take; empty: any that is free
	LifetimeSeconds float64 `json:"lifetime_seconds"`
}

// Invitation is the line, for `dcol join`.
type Invitation struct {
	Line    string    `json:"line"`
	Expires time.Time `json:"expires"`
}

// ExpelRequest asks a coordinator to expel a member. To ask again is no error.
type ExpelRequest struct {
	Member string `json:"member"`
	Why    string `json:"why"`
}

// Expulsion says what was done: the member is one no more.
type Expulsion struct {
	Member string `json:"member"`
	// Pending is why not everybody could be told yet, which goes on by itself; empty: all were.
	Pending string `json:"pending,omitempty"`
	// Waypoints is which of them have confirmed within seconds that they refuse it; nil while not everybody was
	// told.
	Waypoints *Enforcement `json:"waypoints,omitempty"`
}

// Enforcement is how many waypoints have confirmed that they refuse all who are expelled.
type Enforcement struct {
	Of        int `json:"of"`
	Confirmed int `json:"confirmed"`
	// Waiting are those that are connected and have not; Away those that are not connected: they refuse it as soon
	// as they are back.
	Waiting []string `json:"waiting"`
	Away    []string `json:"away"`
}

// Collective is how this host stands as a member that joined a collective.
type Collective struct {
	Name string `json:"name"`
	// Members is how many the copy of the directory has; Behind: changes may be missing, and BehindWhy they
	// cannot be got.
	Members   int    `json:"members"`
	Behind    bool   `json:"behind"`
	BehindWhy string `json:"behind_why,omitempty"`
	// Ignored is how many records did not verify, by reason.
	Ignored     map[string]uint64 `json:"ignored"`
	Coordinator CoordinatorLink   `json:"coordinator"`
	Certificate Certificate       `json:"certificate"`
	Record      OwnRecord         `json:"record"`
	// Chosen are the waypoints out of the directory that this host uses.
	Chosen []string `json:"chosen"`
}

// Coordinator is the coordinator role: what this host does for the whole collective.
type Coordinator struct {
	Listen string `json:"listen"`        // where hosts join and renew; empty: not yet
	Bus    string `json:"bus,omitempty"` // where members connect; empty: to servers elsewhere
	// Members are those of the register, Records how many say something of themselves.
	Members        int       `json:"members"`
	Records        int       `json:"records"`
	Expelled       int       `json:"expelled"`
	Invitations    int       `json:"invitations"` // that were not used yet
	Unreachable    []string  `json:"unreachable"` // waypoints that other members cannot reach
	AuthorityUntil time.Time `json:"authority_until"`
	// Messages of members that were taken, and refused because one sent too many; Floods: how often one was
	// cut off for that.
	Messages uint64 `json:"messages"`
	Refused  uint64 `json:"refused"`
	Floods   uint64 `json:"floods"`
}

// Words of problems that keep a kind of detours away and leave the others as they are: "KIND NotUsed: why" of a
// client, "KIND NotOffered: why" of a waypoint.
const (
	NotUsed    = "detours are not used"
	NotOffered = "detours are not offered"
)

// Unreached begins the problem that others do not reach this host as a waypoint, which Collective.Record tells too.
const Unreached = "other members cannot reach this waypoint"

// CoordinatorLink is the connection to the coordinators.
type CoordinatorLink struct {
	Connected bool      `json:"connected"`
	Server    string    `json:"server,omitempty"` // whose, if connected
	Since     time.Time `json:"since"`
	Heard     time.Time `json:"heard,omitzero"` // when something came from it last
	Why       string    `json:"why,omitempty"`  // there is none
}

// Certificate is this member's own.
type Certificate struct {
	Until time.Time `json:"until"`
	// RenewAt is when a new one is asked for next.
	RenewAt  time.Time `json:"renew_at"`
	Renewed  time.Time `json:"renewed,omitzero"` // when that last went well, since the agent's start
	Failures int       `json:"failures,omitempty"`
	Why      string    `json:"why,omitempty"`      // it failed last
	Expelled string    `json:"expelled,omitempty"` // why the collective has expelled this host
}

// OwnRecord is what this host says of itself in the directory.
type OwnRecord struct {
	Published time.Time    `json:"published,omitzero"` // zero: not yet
	Until     time.Time    `json:"until,omitzero"`
	Addresses []netip.Addr `json:"addresses"`
	Port      uint16       `json:"port,omitempty"`
	Punch     bool         `json:"punch,omitempty"`   // others are let in by hole punching only
	Why       string       `json:"why,omitempty"`     // it was not published as it should be
	Removed   string       `json:"removed,omitempty"` // why coordinators took it out of the directory
	// Reachable is what coordinators found out by asking other members; nil: nothing yet.
	Reachable *bool `json:"reachable,omitempty"`
	// Checked is what came of it when others last tried; nil: nobody has.
	Checked *Reach `json:"checked,omitempty"`
}

// Members asks who is in the collective.
func (c *Client) Members(ctx context.Context) (Members, error) {
	var m Members
	err := c.ask(ctx, http.MethodGet, "/v1/members", nil, &m)
	if err == nil {
		err = sameSchema(m.Schema, MembersSchema)
	}
	return m, err
}

// Invite asks a coordinator's agent for a line that lets one host join.
func (c *Client) Invite(ctx context.Context, r InviteRequest) (Invitation, error) {
	var i Invitation
	err := c.ask(ctx, http.MethodPost, "/v1/invite", r, &i)
	return i, err
}

// Expel asks a coordinator's agent to expel a member.
func (c *Client) Expel(ctx context.Context, r ExpelRequest) (Expulsion, error) {
	var e Expulsion
	err := c.ask(ctx, http.MethodPost, "/v1/expel", r, &e)
	return e, err
}
