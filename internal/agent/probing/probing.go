// Package probing probes paths on which the agent sees trouble, so that `dcol why` names the hop: paths to servers whose
// connections fell back to plain TCP, and paths to waypoints whose session, or one of whose kinds of detours, does not come
// up. It runs only where the operator allows it, and probes a path at most once a day.
package probing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/durable"
	"github.com/detour-collective/dcol/internal/trace/campaign"
	"github.com/detour-collective/dcol/internal/trace/examine"
	"github.com/detour-collective/dcol/internal/trace/recipe"
)

const (
	lookEvery  = 5 * time.Second     // at the agent's state
	downFor    = 10 * time.Second    // a session is not probed before: it may just begin, or follow a change of address
	probeEvery = 24 * time.Hour      // of one path
	keepFor    = 30 * 24 * time.Hour // results
	mostADay   = 50                  // paths
	probeLimit = 2 * time.Minute     // for one
	hops       = 30
	usualPort  = 443 // of servers, for detours that lead to any
	longest    = 1 << 20
)

// File returns the file of results.
func File(stateDir string) string { return filepath.Join(stateDir, "paths-probed.json") }

// Keeper probes, and keeps the results.
type Keeper struct {
	file   string
	status func(context.Context) (api.Status, error)
	probe  func(context.Context, api.ProbedPath) (api.ProbedPath, error)
	log    *slog.Logger

	mu      sync.Mutex
	results []api.ProbedPath
}

// New returns a Keeper. status is the agent's.
func New(stateDir string, status func(context.Context) (api.Status, error), log *slog.Logger) *Keeper {
	k := &Keeper{file: File(stateDir), status: status, probe: examinePath, log: log}
	if err := k.read(); err != nil {
		log.Warn("what was found on paths is forgotten: the file is damaged", "file", k.file, "err", err)
	}
	return k
}

// Run probes until ctx ends.
func (k *Keeper) Run(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		k.look(ctx, time.Now())
	}
}

// look probes one path, if one is due.
func (k *Keeper) look(ctx context.Context, now time.Time) {
	status, err := k.status(ctx)
	if err != nil || status.Client == nil {
		return // the status is asked again
	}
	refusals, err := campaign.HostRefusals(nil)
	if err != nil {
		k.log.Warn("no path is probed, because the list of refusals cannot be read", "err", err)
		return
	}
	next, ok := due(status.Client, k.Known(netip.Addr{}), now)
	if !ok {
		return
	}
	next.At = now.Round(0)
	limited, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	switch {
	case refusals.Addr(next.To.Addr()):
		next.Outcome, next.Confidence, next.Text = string(recipe.Unknown), string(recipe.Open), "It asked not to be probed."
	default:
		found, err := k.probe(limited, next)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			found = next
			found.Outcome, found.Confidence, found.Text = string(recipe.Unknown), string(recipe.Open), fmt.Sprintf("The path could not be probed: %v.", err)
		}
		next = found
	}
	k.log.Info("probed a path", "to", next.To, "recipe", next.Recipe, "outcome", next.Outcome, "found", next.Text)
	k.add(next, now)
}

// due returns the path to probe next, without a result. Each is probed once in probeEvery, all together mostADay times.
func due(c *api.Using, known []api.ProbedPath, now time.Time) (next api.ProbedPath, ok bool) {
	recent := 0
	for _, p := range known {
		if now.Sub(p.At) < probeEvery {
			recent++
		}
	}
	if recent >= mostADay {
		return next, false
	}
	for _, wanted := range troubled(c, now) {
		if !slices.ContainsFunc(known, func(p api.ProbedPath) bool {
			return samePath(p, wanted) && now.Sub(p.At) < probeEvery
		}) {
			return wanted, true
		}
	}
	return next, false
}

// samePath reports whether two probes ask the same of one path. Datagrams to two ports are two: sessions and OpenVPN have
// one each, and firewalls tell them apart.
func samePath(a, b api.ProbedPath) bool {
	if a.Recipe != b.Recipe || a.Recipe == "udp" && a.To.Port() != b.To.Port() {
		return false
	}
	return a.To.Addr() == b.To.Addr()
}

// troubled returns the paths on which something does not come through.
func troubled(c *api.Using, now time.Time) (list []api.ProbedPath) {
	for _, server := range c.Plain {
		list = append(list, api.ProbedPath{To: server, Recipe: "mptcp"})
	}
	for _, w := range c.Waypoints {
		if w.State == api.WaypointDown {
			if now.Sub(w.Since) >= downFor {
				list = append(list, api.ProbedPath{To: w.Addr, Waypoint: w.Name, Recipe: "udp"})
			}
			continue // no kind can come up
		}
		for _, kind := range w.Kinds {
			if p, ok := troubledKind(w, kind, now); ok {
				list = append(list, p)
			}
		}
	}
	return list
}

// troubledKind returns the path to a waypoint that one kind of detours takes, if it does not come through.
func troubledKind(w api.Waypoint, kind api.WaypointKind, now time.Time) (p api.ProbedPath, ok bool) {
	p = api.ProbedPath{To: netip.AddrPortFrom(w.Addr.Addr(), usualPort), Waypoint: w.Name}
	resting := kind.State == api.KindResting
	switch kind.Kind {
	case "in-band":
		p.Recipe = "in-band"
		return p, resting
	case "mapped":
		p.Recipe = "mptcp"                                                 // its SYN has MP_JOIN alone
		return p, resting || kind.State == api.KindReady && kind.Why != "" // it mostly rests towards one server
	}
	// A tunnel that the waypoint granted and that does not come up is down. Without a grant there is no path to blame.
	p.To, p.Recipe = kind.Remote, "udp"
	down := kind.State == api.KindDown && now.Sub(w.Since) >= downFor
	return p, kind.Remote.IsValid() && (resting || down)
}

// examinePath probes a path.
func examinePath(ctx context.Context, p api.ProbedPath) (api.ProbedPath, error) {
	target := examine.Target{Name: p.To.Addr().String(), Addr: p.To.Addr(), Port: p.To.Port(), Hops: hops}
	report, err := examine.Path(ctx, target, []string{p.Recipe}, func(recipe.Recipe) {})
	if err != nil {
		return p, err
	}
	for _, v := range report.Verdicts {
		p.Outcome, p.Confidence, p.Text, p.Evidence = v.Outcome, v.Confidence, v.Text, v.Evidence
	}
	return p, nil
}

// Known returns the results for a server: those of the path to it, and those of paths to waypoints. The zero address
// stands for all servers.
func (k *Keeper) Known(server netip.Addr) (list []api.ProbedPath) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.results {
		if !server.IsValid() || p.Waypoint != "" || p.To.Addr() == server {
			list = append(list, p)
		}
	}
	return list
}

// add adds a result in the place of an earlier one of the same path, and writes the file.
func (k *Keeper) add(p api.ProbedPath, now time.Time) {
	k.mu.Lock()
	k.results = slices.DeleteFunc(k.results, func(old api.ProbedPath) bool {
		return samePath(old, p) || now.Sub(old.At) > keepFor
	})
	k.results = append(k.results, p)
	data, err := json.MarshalIndent(k.results, "", "\t")
	k.mu.Unlock()
	if err == nil {
		err = durable.Replace(k.file, append(data, '\n'), 0o600)
	}
	if err != nil {
		k.log.Warn("what was found on a path cannot be saved; after a restart it may be probed again", "file", k.file, "err", err)
	}
}

// read reads the file.
func (k *Keeper) read() error {
	data, err := os.ReadFile(k.file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if len(data) > longest {
		return fmt.Errorf("it is longer than %d bytes", longest)
	}
	return json.Unmarshal(data, &k.results)
}
