package api

import (
	"context"
	"net/netip"
	"time"
)

// MembersSchema is the version of Members.
const MembersSchema = "dcol.members/1"

// Members lists the members that this host knows of. A coordinator also lists expelled members, and
// members without a record.
type Members struct {
	Schema     string   `json:"schema"`
	Collective string   `json:"collective"`
	Self       string   `json:"self"`    // this host's name
	Behind     bool     `json:"behind"`  // changes may be missing: no coordinator has confirmed that the list is complete
	Members    []Member `json:"members"` // by name
}

// Member describes a member, mostly as in its own record.
type Member struct {
	Name      string       `json:"name"`
	Roles     []string     `json:"roles"`
	Kinds     []string     `json:"kinds"` // of detours it offers
	Addresses []netip.Addr `json:"addresses"`
	Port      uint16       `json:"port,omitempty"`
	Punch     bool         `json:"punch,omitempty"` // reachable through hole punching only
	Region    string       `json:"region,omitempty"`
	Capacity  uint64       `json:"capacity_bps,omitempty"` // 0: not stated
	Subnet    netip.Prefix `json:"subnet,omitzero"`        // in the collective's VPN
	// CertificateUntil is when its certificate expires, RecordIssued and RecordUntil when its record was issued
	// and expires. They are zero if not known.
	CertificateUntil time.Time `json:"certificate_until,omitzero"`
	RecordIssued     time.Time `json:"record_issued,omitzero"`
	RecordUntil      time.Time `json:"record_until,omitzero"`
	// Reachable reports whether other members reach the waypoint. It is nil if that is not known. Reach has the
	// details, on a coordinator only.
	Reachable *bool  `json:"reachable,omitempty"`
	Reach     *Reach `json:"reach,omitempty"`
	// Used reports whether this host uses it as a waypoint: it has chosen it, or its configuration names it.
	Used bool `json:"used,omitempty"`
	// Joined, Enforces and Expelled are known to coordinators only.
	Joined time.Time `json:"joined,omitzero"`
	// Enforces reports whether a waypoint has confirmed that it refuses all expelled members. It is nil if the
	// waypoint has reported nothing.
	Enforces *bool `json:"enforces,omitempty"`
	// Expelled and Why are set if the member was expelled.
	Expelled time.Time `json:"expelled,omitzero"`
	Why      string    `json:"why,omitempty"`
}

// Reach describes a test by other members whether they reach a waypoint.
type Reach struct {
	Yes int       `json:"yes"` // how many got an answer
	Of  int       `json:"of"`  // how many tried
	At  time.Time `json:"at"`
	// By lists the members that got an answer; if none did, all that tried.
	By  []string `json:"by"`
	Why string   `json:"why,omitempty"` // one of the errors, if none got an answer
}

// InviteRequest asks a coordinator for an invitation for one host.
type InviteRequest struct {
	Name            string  `json:"name,omitempty"` // that the host must take; empty: any free one
	LifetimeSeconds float64 `json:"lifetime_seconds"`
}

// Invitation contains the invitation for `dcol join`.
type Invitation struct {
	Line    string    `json:"line"`
	Expires time.Time `json:"expires"`
}

// ExpelRequest asks a coordinator to expel a member. Expelling a member again is no error.
type ExpelRequest struct {
	Member string `json:"member"`
	Why    string `json:"why"`
}

// Expulsion describes the result of an expulsion.
type Expulsion struct {
	Member string `json:"member"`
	// Pending is the reason why not all members could be notified yet. The coordinator keeps trying. It is empty
	// if all were notified.
	Pending string `json:"pending,omitempty"`
	// Waypoints counts the confirmations so far. It is nil while Pending is set.
	Waypoints *Enforcement `json:"waypoints,omitempty"`
}

// Enforcement counts the waypoints that have confirmed that they refuse all expelled members.
type Enforcement struct {
	Of        int `json:"of"`
	Confirmed int `json:"confirmed"`
	// Waiting are connected waypoints that have not confirmed yet. Away are waypoints that are not connected; they
	// learn of the expulsion when they reconnect.
	Waiting []string `json:"waiting"`
	Away    []string `json:"away"`
}

// Collective describes this host's membership.
type Collective struct {
	Name string `json:"name"`
	// Members is the number of members in the copy of the directory. Behind reports whether changes may be
	// missing, and BehindWhy why they cannot be fetched.
	Members   int    `json:"members"`
	Behind    bool   `json:"behind"`
	BehindWhy string `json:"behind_why,omitempty"`
	// Ignored counts the records that failed verification, by reason.
	Ignored     map[string]uint64 `json:"ignored"`
	Coordinator CoordinatorLink   `json:"coordinator"`
	Certificate Certificate       `json:"certificate"`
	Record      OwnRecord         `json:"record"`
	// Chosen are the waypoints from the directory that this host uses.
	Chosen []string `json:"chosen"`
}

// Coordinator describes the coordinator role.
type Coordinator struct {
	Listen string `json:"listen"`        // where hosts join and renew; empty: not yet
	Bus    string `json:"bus,omitempty"` // where members connect; empty: at servers elsewhere
	// Members counts the members in the register, Records those with a record in the directory.
	Members        int       `json:"members"`
	Records        int       `json:"records"`
	Expelled       int       `json:"expelled"`
	Invitations    int       `json:"invitations"` // not used yet
	Unreachable    []string  `json:"unreachable"` // waypoints that other members cannot reach
	AuthorityUntil time.Time `json:"authority_until"`
	// Messages counts members' messages, Refused those beyond a member's limit, and Floods how often a member was
	// cut off for sending too many.
	Messages uint64 `json:"messages"`
	Refused  uint64 `json:"refused"`
	Floods   uint64 `json:"floods"`
}

// A problem that concerns one kind of detours only is "KIND NotUsed: why" at a client, and "KIND NotOffered: why" at a
// waypoint.
const (
	NotUsed    = "detours are not used"
	NotOffered = "detours are not offered"
)

// Unreached is the beginning of the problem that others do not reach this waypoint. The details are in
// Collective.Record.
const Unreached = "other members cannot reach this waypoint"

// CoordinatorLink describes the connection to the coordinators.
type CoordinatorLink struct {
	Connected bool      `json:"connected"`
	Server    string    `json:"server,omitempty"` // whose, if connected
	Since     time.Time `json:"since"`
	Heard     time.Time `json:"heard,omitzero"` // time of its last message
	Why       string    `json:"why,omitempty"`  // why there is no connection
}

// Certificate describes this member's own certificate.
type Certificate struct {
	Until time.Time `json:"until"`
	// RenewAt is the time of the next renewal, or attempt.
	RenewAt  time.Time `json:"renew_at"`
	Renewed  time.Time `json:"renewed,omitzero"` // last successful renewal since the agent's start
	Failures int       `json:"failures,omitempty"`
	Why      string    `json:"why,omitempty"`      // the last renewal failed
	Expelled string    `json:"expelled,omitempty"` // why the collective has expelled this host
}

// OwnRecord describes this host's own record in the directory.
type OwnRecord struct {
	Published time.Time    `json:"published,omitzero"` // zero: not yet
	Until     time.Time    `json:"until,omitzero"`
	Addresses []netip.Addr `json:"addresses"`
	Port      uint16       `json:"port,omitempty"`
	Punch     bool         `json:"punch,omitempty"`   // reachable through hole punching only
	Why       string       `json:"why,omitempty"`     // it could not be published
	Removed   string       `json:"removed,omitempty"` // why coordinators removed it from the directory
	// Reachable reports whether other members reach this waypoint. It is nil if coordinators have not reported it yet.
	Reachable *bool `json:"reachable,omitempty"`
	// Checked describes the last test by others. It is nil if there was none.
	Checked *Reach `json:"checked,omitempty"`
}

// Members requests the list of members.
func (c *Client) Members(ctx context.Context) (Members, error) {
	m, err := get[Members](ctx, c, "/v1/members")
	return m, checkSchema(err, m.Schema, MembersSchema)
}

// Invite asks a coordinator's agent for an invitation for one host.
func (c *Client) Invite(ctx context.Context, r InviteRequest) (Invitation, error) {
	return postOnce[Invitation](ctx, c, "/v1/invite", r, "repeat the command; an invitation that was not printed expires unused")
}

// Expel asks a coordinator's agent to expel a member.
func (c *Client) Expel(ctx context.Context, r ExpelRequest) (Expulsion, error) {
	return postOnce[Expulsion](ctx, c, "/v1/expel", r, "dcol members shows whether "+r.Member+" is still a member")
}
