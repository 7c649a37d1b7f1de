package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/lab/testbed"
)

// status returns what an agent reports. Tests ask often, so this asks the agent itself: a program built with the race
// detector takes long to start.
func (w *world) status(host string) (api.Status, error) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), patience)
	defer cancel()
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			return testbed.On(w.host(host), func() (net.Conn, error) { return net.Dial("unix", config.DefaultSocket) })
		},
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent/v1/status", nil)
	if err != nil {
		return api.Status{}, err
	}
	answer, err := client.Do(request)
	if err != nil {
		return api.Status{}, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("the agent of %s answers %s: %s", host, answer.Status, text)
	}
	if err != nil {
		return api.Status{}, err
	}
	return w.readStatus(host, text), nil
}

// commandAgrees demands that `dcol status --json` can be read like the agent's own answer.
func (w *world) commandAgrees(host string) {
	w.Helper()
	if s := w.readStatus(host, []byte(w.dcol(host, "status", "--json"))); s.Member != host {
		w.Errorf("the status of %s is that of %q", host, s.Member)
	}
}

// readStatus reads strictly: a field that the schema does not have is an error.
func (w *world) readStatus(host string, text []byte) (s api.Status) {
	w.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		w.Fatalf("status of %s: %v\n%s", host, err, text)
	}
	if null.Match(text) {
		w.Errorf("status of %s: a list that is empty is not null\n%s", host, text)
	}
	return s
}

var null = regexp.MustCompile(`": ?null\b`)

// mustStatus is status of an agent that must answer.
func (w *world) mustStatus(host string) api.Status {
	w.Helper()
	s, err := w.status(host)
	if err != nil {
		w.Fatal(err)
	}
	return s
}

// waypoint returns bob as alice's status shows it.
func (w *world) waypoint() api.Waypoint {
	w.Helper()
	return w.mustStatus(alice).Client.Waypoints[0]
}

func (w *world) waypointUp() {
	w.Helper()
	w.eventually("alice has a session with bob", func() error {
		if s := w.waypoint(); s.State != "up" {
			return fmt.Errorf("it is %s: %s", s.State, s.Why)
		}
		return nil
	})
}

// waypointBack waits for another session than that one.
func (w *world) waypointBack(before api.Waypoint) {
	w.Helper()
	w.eventually("alice has a new session with bob", func() error {
		s := w.waypoint()
		return holds(s.State == "up" && s.Since != before.Since, "it is %s since %v: %s", s.State, s.Since, s.Why)
	})
}

// waypointDown waits until alice sees bob as down, with these words in the reason.
func (w *world) waypointDown(words ...string) {
	w.Helper()
	w.eventually(fmt.Sprintf("alice sees bob as down: %q", words), func() error {
		s := w.waypoint()
		if s.State != "down" {
			return fmt.Errorf("it is %s", s.State)
		}
		for _, word := range words {
			if !strings.Contains(s.Why, word) {
				return fmt.Errorf("it does not say %q: %s", word, s.Why)
			}
		}
		return nil
	})
}

// kind returns the state of a kind of detour at bob, from alice's status.
func (w *world) kind(kind string) api.WaypointKind {
	w.Helper()
	return kindOf(w.waypoint(), kind)
}

func kindOf(at api.Waypoint, kind string) api.WaypointKind {
	i := slices.IndexFunc(at.Kinds, func(k api.WaypointKind) bool { return k.Kind == kind })
	if i < 0 {
		return api.WaypointKind{Kind: kind, State: "not used"}
	}
	return at.Kinds[i]
}

// kindIs waits until a kind of detour at bob is in that state, and the status says so in
// these words.
func (w *world) kindIs(kind string, state api.KindState, words ...string) {
	w.Helper()
	w.eventually(fmt.Sprintf("%s is %s %q", kind, state, words), func() error {
		k := w.kind(kind)
		if k.State != state {
			return fmt.Errorf("it is %s: %s", k.State, k.Why)
		}
		for _, word := range words {
			if !strings.Contains(k.Why, word) {
				return fmt.Errorf("it does not say %q: %s", word, k.Why)
			}
		}
		return nil
	})
}

// inBand returns bob's counters of in-band SYNs.
func (w *world) inBand() api.InBand {
	w.Helper()
	s := w.mustStatus(bob)
	if s.Serving.InBand == nil {
		w.Fatalf("bob offers no in-band detours: %+v", s)
	}
	return *s.Serving.InBand
}

// only is alice's one connection; an error if there are others.
func (w *world) only() (api.Connection, error) {
	w.Helper()
	all := w.mustStatus(alice).Client.Connections
	if len(all) != 1 {
		return api.Connection{}, fmt.Errorf("alice has %d connections", len(all))
	}
	return all[0], nil
}

// detoured waits until alice's one connection has the direct subflow and one
// detour, both up.
func (w *world) detoured() api.Connection {
	w.Helper()
	return w.subflows("direct up", "mapped up")
}

// subflows waits until alice's one connection has exactly these.
func (w *world) subflows(want ...string) (c api.Connection) {
	w.Helper()
	return w.subflowsWithin(patience, want...)
}

func (w *world) subflowsWithin(limit time.Duration, want ...string) (c api.Connection) {
	w.Helper()
	w.within(limit, fmt.Sprintf("subflows %q", want), func() (err error) {
		if c, err = w.only(); err != nil {
			return err
		}
		var have []string
		for _, s := range c.Subflows {
			have = append(have, s.Kind+" "+string(s.State))
		}
		if !slices.Equal(have, want) {
			return fmt.Errorf("it has %q (%s)", have, c.Note)
		}
		return nil
	})
	w.commandOnce.Do(func() { w.commandAgrees(alice) })
	return c
}

// detour returns the subflow of a connection that is one.
func detour(c api.Connection) api.Subflow {
	i := slices.IndexFunc(c.Subflows, func(s api.Subflow) bool { return s.Kind != "direct" })
	return c.Subflows[i]
}

// pathManager is which path manager new sockets of a host get.
func (w *world) pathManager(host string) string {
	w.Helper()
	value, err := w.read(host, "/proc/sys/net/mptcp/pm_type")
	if err != nil {
		w.Fatal(err)
	}
	return map[string]string{"0": "kernel", "1": "userspace"}[strings.TrimSpace(string(value))]
}

// ourFlows returns the connections that bob's kernel forwards for members.
func (w *world) ourFlows() []string {
	w.Helper()
	out := w.run(bob, "conntrack", "-L", "-p", "tcp", "--mark", "0x80000000/0x80000000")
	return strings.FieldsFunc(strings.TrimSpace(out), func(r rune) bool { return r == '\n' })
}

// mappings returns the elements of a map of bob's nftables table.
func (w *world) mappings(name string) []string {
	w.Helper()
	out := w.run(bob, "nft", "-j", "list", "map", "inet", "dcol", name)
	var listed struct {
		Nftables []struct {
			Map *struct{ Elem []json.RawMessage } `json:"map"`
		} `json:"nftables"`
	}
	if err := json.Unmarshal([]byte(out), &listed); err != nil {
		w.Fatal(err)
	}
	var all []string
	for _, part := range listed.Nftables {
		if part.Map != nil {
			for _, e := range part.Map.Elem {
				all = append(all, string(e))
			}
		}
	}
	return all
}

// holds is for conditions: nil if it is so.
func holds(so bool, format string, args ...any) error {
	if so {
		return nil
	}
	return fmt.Errorf(format, args...)
}

// unchanged demands that alice's connection is the one it was, with the same subflows.
func (w *world) unchanged(before api.Connection) {
	w.Helper()
	after := w.detoured()
	same := before.Token == after.Token && len(before.Subflows) == len(after.Subflows)
	for i := range after.Subflows {
		same = same && before.Subflows[i].Local == after.Subflows[i].Local && before.Subflows[i].Remote == after.Subflows[i].Remote
	}
	if !same {
		w.Errorf("the connection or its subflows are others now:\nbefore %+v\nafter  %+v", before, after)
	}
}

// sysctls returns all that a host's agent could have changed.
func (w *world) sysctls(host string) map[string]string {
	w.Helper()
	all := map[string]string{}
	for line := range strings.Lines(w.run(host, "sysctl", "-a", "--pattern", `^net\.`)) {
		key, value, ok := strings.Cut(line, " = ")
		// Skip counters, values that the kernel computes on every read, and what all namespaces share: other tests register
		// congestion controls.
		if ok && !strings.Contains(key, "nf_conntrack_count") && !strings.Contains(key, "stable_secret") &&
			!strings.HasSuffix(key, "tcp_available_congestion_control") && !strings.HasSuffix(key, "tcp_allowed_congestion_control") {
			all[key] = strings.TrimSpace(value)
		}
	}
	return all
}

// sameSysctls demands that the host is as it was. Keys that came with a part of
// the kernel that was loaded meanwhile do not count.
func (w *world) sameSysctls(host string, before map[string]string) {
	w.Helper()
	after := w.sysctls(host)
	for key, was := range before {
		if now, ok := after[key]; ok && now != was {
			w.Errorf("on %s, %s is %q and was %q", host, key, now, was)
		}
	}
}

// mappingKeys returns the clients' addresses and ports of bob's mappings.
func (w *world) mappingKeys() []string {
	w.Helper()
	var keys []string
	for _, m := range w.mappings("servers4") {
		var pair []json.RawMessage
		var key struct {
			Elem struct{ Val struct{ Concat []any } }
		}
		err := json.Unmarshal([]byte(m), &pair)
		if err == nil {
			err = json.Unmarshal(pair[0], &key)
		}
		if err != nil {
			w.Fatal(err)
		}
		keys = append(keys, fmt.Sprint(key.Elem.Val.Concat...))
	}
	slices.Sort(keys)
	return keys
}
