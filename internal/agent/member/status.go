package member

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/enrol"
	"github.com/detour-collective/dcol/internal/membership"
)

// Status returns the collective's part of the status, and the problems that a person should solve.
func (m *Member) Status(ctx context.Context) (*api.Collective, []string, error) {
	s, err := m.State(ctx)
	if err != nil {
		return nil, nil, err
	}
	out := &api.Collective{
		Name: s.Self.Collective, Members: s.Directory.Members, Behind: s.Directory.Behind, Ignored: map[string]uint64{},
		Coordinator: api.CoordinatorLink{Connected: s.Bus.Connected, Server: s.Bus.Server, Since: s.Bus.Since, Heard: s.Bus.Heard},
		Certificate: api.Certificate{Until: s.Self.NotAfter, RenewAt: s.Renewal.Next, Renewed: s.Renewal.Last, Failures: s.Renewal.Failures, Expelled: s.Renewal.Expelled},
		Record:      api.OwnRecord{Addresses: []netip.Addr{}, Reachable: s.Record.Reached, Removed: s.Record.Removed},
		Chosen:      s.Chosen,
	}
	if s.Directory.Behind {
		out.BehindWhy = words(s.Directory.AskErr)
	}
	if !s.Bus.Connected {
		out.Coordinator.Why = words(s.Bus.Err)
	}
	out.Certificate.Why, out.Record.Why = words(s.Renewal.Err), words(s.Record.Err)
	for reason, n := range s.Directory.Refused {
		out.Ignored[string(reason)] = n
	}
	if v := s.Record.Verified; v != nil {
		out.Record.Published, out.Record.Until, out.Record.Addresses = v.Record.Issued, v.Until, append(out.Record.Addresses, v.Record.Addresses...)
		out.Record.Port, out.Record.Punch = v.Record.Port, v.Record.Punch
	}
	if t := s.Record.Tried; t != nil {
		out.Record.Checked = &api.Reach{Yes: t.Yes, Of: t.Of, At: t.At, By: append([]string{}, t.By...), Why: t.Why}
	}
	return out, problems(s, time.Now()), nil
}

// problems describes the problems that a person should solve. A coordinator that is away is no problem, as
// long as the certificate does not end soon.
func problems(s membership.State, now time.Time) (list []string) {
	add := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	if errors.Is(s.Renewal.Err, enrol.ClockWrong) {
		add("%v", s.Renewal.Err)
	}
	if s.Renewal.Expelled != "" {
		add("this host was expelled from the collective (%s): it gets no detours; connections use their direct path. %s", s.Renewal.Expelled, fixExpelled)
	} else if left := s.Self.NotAfter.Sub(now); s.Renewal.Err != nil && left < s.Self.NotAfter.Sub(s.Self.NotBefore)/2 {
		add("the certificate expires on %s and cannot be renewed: %v", s.Self.NotAfter.UTC().Format("2006-01-02 15:04 UTC"), s.Renewal.Err)
	}
	if s.Record.Removed != "" && s.Renewal.Expelled == "" {
		add("this host was removed from the directory: %s", s.Record.Removed)
	}
	if s.Record.Err != nil && s.Bus.Connected {
		add("this host's record is not published: %v", s.Record.Err)
	}
	if s.Bus.Connected {
		tried, untried := withheld(&s.Record)
		if len(tried) > 0 {
			add("the addresses %v are not published, because no member could reach this host there: open the sessions' UDP port, or set the right addresses in [collective] addresses", tried)
		}
		if len(untried) > 0 && (s.Record.Verified == nil || len(s.Record.Verified.Record.Addresses) == 0) {
			add("the addresses %v are not published, because they are private and this host does not reach the coordinator from such a network: set the addresses at which members reach it in [collective] addresses", untried)
		}
	}
	if s.Record.Reached != nil && !*s.Record.Reached && s.Record.Verified != nil && s.Record.Verified.Record.IsWaypoint() && !s.Record.Verified.Record.Punch {
		r := s.Record.Verified.Record
		add(api.Unreached+" at UDP port %d of %v: open the port, or set the right addresses in [collective] addresses", r.Port, r.Addresses)
	}
	for _, err := range []error{s.Directory.LoadErr, s.Directory.SaveErr, s.Trouble} {
		if err != nil {
			add("%v", err)
		}
	}
	return list
}

// withheld returns this host's addresses that its record leaves out. tried are addresses at which others
// tried in vain to reach this host. untried are private addresses of a block in which no published address
// lies; nobody tries those (docs/security.md).
func withheld(r *membership.Record) (tried, untried []netip.Addr) {
	var published []netip.Addr
	if r.Verified != nil {
		published = r.Verified.Record.Addresses
	}
	for _, a := range r.Withheld {
		if enrol.Shares(published, a) {
			tried = append(tried, a)
		} else {
			untried = append(untried, a)
		}
	}
	return tried, untried
}

// fixExpelled is shown to the user of a host that was expelled.
const fixExpelled = "Ask the operator of the collective. To leave it, run dcol leave"

func words(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// List returns the members of the directory.
func (m *Member) List(ctx context.Context) (api.Members, error) {
	s, err := m.State(ctx)
	if err != nil {
		return api.Members{}, err
	}
	out := api.Members{Schema: api.MembersSchema, Collective: s.Self.Collective, Self: s.Self.Name, Behind: s.Directory.Behind, Members: []api.Member{}}
	err = m.Directory(ctx, func(d *directory.Directory) {
		for v := range d.All() {
			out.Members = append(out.Members, describeMember(v, s))
		}
	})
	return out, err
}

func describeMember(v *directory.Verified, s membership.State) api.Member {
	r := &v.Record
	m := api.Member{
		Name: r.Name, Roles: append([]string{}, r.Roles...), Kinds: append([]string{}, r.Kinds...),
		Addresses: append([]netip.Addr{}, r.Addresses...), Port: r.Port, Punch: r.Punch, Region: r.Region, Capacity: r.Capacity, Subnet: v.Holder.Subnet,
		CertificateUntil: v.Holder.NotAfter, RecordIssued: r.Issued, RecordUntil: v.Until, Used: slices.Contains(s.Chosen, r.Name),
	}
	if r.IsWaypoint() {
		m.Reachable = membership.Reached(s.Word, r.Name)
	}
	return m
}
