package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/trace/campaign"
	"github.com/detour-collective/dcol/internal/trace/vantage"
)

// vantagePoints are members that trace for this one.
type vantagePoints struct {
	identity *collective.Identity
	at       map[string][]netip.AddrPort // by name
}

// openVantagePoints reads this member's identity and finds the members' addresses: in the configuration, or in the
// directory, which the agent has.
func openVantagePoints(ctx context.Context, path string, names []string) (*vantagePoints, error) {
	c, err := config.Load(path)
	if err != nil {
		return nil, err
	}
	files := collective.Files{Certificate: c.Identity.Certificate, Key: c.Identity.Key, CA: c.Identity.CA, CRL: c.Identity.CRL}
	v := &vantagePoints{at: map[string][]netip.AddrPort{}}
	if v.identity, err = collective.Load(files, slog.New(slog.DiscardHandler)); err != nil {
		return nil, err
	}
	for _, w := range c.Client.Waypoints {
		for _, a := range w.Addresses {
			v.at[w.Name] = append(v.at[w.Name], netip.AddrPortFrom(a, uint16(w.Port)))
		}
	}
	if c.Collective.Joined() {
		members, err := dial(c.Socket()).Members(ctx)
		if err != nil {
			return nil, err
		}
		for _, m := range members.Members {
			for _, a := range m.Addresses {
				v.at[m.Name] = append(v.at[m.Name], netip.AddrPortFrom(a, m.Port))
			}
		}
	}
	for i, name := range names {
		switch {
		case name == c.Name:
			return nil, fmt.Errorf("--via %s: this host itself always traces", name)
		case slices.Contains(names[:i], name):
			return nil, fmt.Errorf("--via %s is given twice", name)
		case len(v.at[name]) == 0:
			return nil, fmt.Errorf("--via %s: the address of that member is not known; see dcol members", name)
		}
	}
	return v, nil
}

// ask has a member trace names, and passes each of its results to take.
func (v *vantagePoints) ask(ctx context.Context, member string, r vantage.Request, names []string, take func(*campaign.Record) error) (err error) {
	var stream *session.Aside
	for _, at := range v.at[member] {
		if stream, err = session.OpenAside(ctx, v.identity, member, at); err == nil || errors.Is(err, session.ErrNoAsides) {
			break
		}
	}
	if errors.Is(err, session.ErrNoAsides) {
		return fmt.Errorf("%s traces for nobody: its operator can allow it with [trace] vantage_point = true", member)
	}
	if err != nil {
		return err
	}
	defer stream.Close()
	unhook := context.AfterFunc(ctx, func() { stream.CancelRead(0) })
	defer unhook()
	answer, err := vantage.Ask(stream, member, r, names, take)
	if err == nil && answer.Taken < len(names) {
		fmt.Fprintf(os.Stderr, "%s traces %d of %d destinations today; the same command goes on tomorrow\n", member, answer.Taken, len(names))
	}
	return err
}

// runVia has all vantage points trace at the same time as this host.
func (f *campaignFlags) runVia(ctx context.Context, c *campaign.Campaign, names []string, file *campaign.File) error {
	points, err := openVantagePoints(ctx, f.config, f.via)
	if err != nil {
		return err
	}
	if c.From == "" {
		c.From = points.identity.Name()
		c.Names, c.Probed = left(names, c.From, file), file.Probed[c.From]
	}
	found := f.resolveAll(ctx, names, c)
	var group errgroup.Group
	group.Go(func() error { return c.Run(ctx) })
	for _, member := range f.via {
		r := vantage.Request{Schema: vantage.Schema, Contact: f.contact, Port: uint16(f.port), Hops: f.hops, Rate: f.rate}
		var asked []string
		for _, name := range left(names, member, file) {
			addr, ok := found[name]
			if _, before := file.Probed[member][addr]; before {
				continue
			}
			if ok && len(asked) < vantage.MaxDestinations && !slices.Contains(r.Destinations, addr) {
				asked, r.Destinations = append(asked, name), append(r.Destinations, addr)
			}
		}
		if len(asked) == 0 {
			continue
		}
		group.Go(func() error {
			// If one vantage point fails, the campaign goes on with the others.
			if err := points.ask(ctx, member, r, asked, file.Add); err != nil && ctx.Err() == nil {
				fmt.Fprintf(os.Stderr, "%s: %v\n", member, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// left returns the names for which file has no result from the vantage point from.
func left(names []string, from string, file *campaign.File) (rest []string) {
	for _, name := range names {
		if !file.Done[campaign.Done{From: from, Name: name}] {
			rest = append(rest, name)
		}
	}
	return rest
}

// resolving is the number of names that are resolved at a time.
const resolving = 20

// resolveAll finds the addresses of all names that have not refused, so that all vantage points trace the same.
func (f *campaignFlags) resolveAll(ctx context.Context, names []string, c *campaign.Campaign) map[string]netip.Addr {
	addrs := make([]netip.Addr, len(names))
	var group errgroup.Group
	group.SetLimit(resolving)
	for i, name := range names {
		if c.Refusals.Name(name) {
			continue
		}
		group.Go(func() error {
			addrs[i], _ = f.resolve(ctx, name) // this host's own result has the error
			return nil
		})
	}
	_ = group.Wait() // no error is returned
	found := map[string]netip.Addr{}
	for i, name := range names {
		if a := addrs[i]; a.IsValid() && !c.Refusals.Addr(a) {
			found[name] = a
		}
	}
	c.Resolve = func(ctx context.Context, name string) (netip.Addr, error) {
		if a, ok := found[name]; ok {
			return a, nil
		}
		return f.resolve(ctx, name)
	}
	return found
}
