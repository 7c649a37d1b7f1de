package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/pelletier/go-toml/v2"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/lab/testbed"
)

const (
	// readyLimit is how long agents may take to be up, on a busy machine.
	readyLimit = time.Minute
	// commandLimit is how long a short dcol command may take.
	commandLimit = 30 * time.Second
)

// agent is `dcol agent` on a host, or the place of one that has ended.
type agent struct {
	w    *world
	host string

	mu     sync.Mutex // one change at a time
	cmd    *testbed.Cmd
	ended  chan struct{}
	runs   int
	began  time.Time      // this run
	struck syscall.Signal // by which this run is to end; 0: by none
}

// start starts the agent, unless it runs.
func (a *agent) start() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.runningLocked() {
		return nil
	}
	a.runs, a.began, a.struck = a.runs+1, time.Now(), 0
	log, err := os.OpenFile(filepath.Join(a.w.dir, "agent-"+a.host+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	fmt.Fprintf(log, "--- start %d at %s\n", a.runs, time.Now().Format(time.RFC3339Nano))
	// With the rights that packaging/dcol.service gives it, and no more.
	a.cmd = a.w.host(a.host).Command(a.w.life, "setpriv", "--bounding-set=-all,+net_admin,+bpf", "--inh-caps=-all", "--no-new-privs", a.w.programs.DCol, "agent")
	a.cmd.Stdout, a.cmd.Stderr = log, log
	if err := a.cmd.Start(); err != nil {
		log.Close()
		return fmt.Errorf("start the agent of %s: %w", a.host, err)
	}
	ended := make(chan struct{})
	a.ended = ended
	go func(cmd *testbed.Cmd, run int) {
		err := cmd.Wait()
		log.Close()
		a.mu.Lock()
		struck := a.struck // the next run begins when ended is closed
		a.mu.Unlock()
		if a.w.life.Err() == nil {
			a.w.died.judgeEnd(fmt.Sprintf("the agent of %s (start %d)", a.host, run), struck, err)
		}
		close(ended)
	}(a.cmd, a.runs)
	return nil
}

func (a *agent) runningLocked() bool {
	if a.ended == nil {
		return false
	}
	select {
	case <-a.ended:
		return false
	default:
		return true
	}
}

// age is how long ago the agent was started.
func (a *agent) age() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return time.Since(a.began)
}

// signal sends a signal, if the agent runs, and reports whether it did.
func (a *agent) signal(s syscall.Signal) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.runningLocked() && a.cmd.Process.Signal(s) == nil
}

// strike sends a signal by which the agent is to end, if it runs, and reports
// whether it did.
func (a *agent) strike(s syscall.Signal) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.runningLocked() {
		return false
	}
	if a.struck != syscall.SIGKILL {
		a.struck = s
	}
	return a.cmd.Process.Signal(s) == nil
}

// await waits until the agent has ended.
func (a *agent) await(limit time.Duration) error {
	a.mu.Lock()
	ended := a.ended
	a.mu.Unlock()
	select {
	case <-ended:
		return nil
	case <-time.After(limit):
		return fmt.Errorf("the agent of %s has not ended %v after it was told to", a.host, limit)
	}
}

// startAll configures and starts every member's agent, and waits for all.
func (w *world) startAll(ctx context.Context) error {
	for _, name := range w.members() {
		data, err := toml.Marshal(w.config(name))
		if err == nil {
			err = w.write(name, config.DefaultPath, data)
		}
		if err != nil {
			return fmt.Errorf("configure %s: %w", name, err)
		}
	}
	for _, name := range w.members() {
		if w.agents[name] == nil {
			w.agents[name] = &agent{w: w, host: name}
		}
		if err := w.agents[name].start(); err != nil {
			return err
		}
	}
	return w.ready(ctx)
}

// ready waits until the client can use every honest waypoint.
func (w *world) ready(ctx context.Context) error {
	err := within(ctx, readyLimit, 300*time.Millisecond, func() error {
		s, err := w.status(ctx, alice)
		if err != nil {
			return err
		}
		for _, name := range w.waypoints {
			if err := usable(s, name); err != nil {
				return err
			}
		}
		return nil
	})
	return w.blame(ctx, "the collective did not come up", err)
}

// answer has every member's agent tell its status: one that hangs does not.
func (w *world) answer(ctx context.Context) {
	for _, name := range w.members() {
		_, err := w.status(ctx, name)
		_ = w.blame(ctx, "the agent of "+name+" does not tell its status", err) // noted; the sequence goes on
	}
}

// usable reports why a waypoint cannot be used yet by its preferred kind.
func usable(s api.Status, name string) error {
	if s.Client == nil {
		return errors.New("the agent has no client role")
	}
	why := fmt.Errorf("waypoint %s is not known yet", name)
	for _, w := range s.Client.Waypoints { // one of its addresses is enough
		switch {
		case w.Name != name:
		case w.State != api.WaypointUp:
			why = fmt.Errorf("waypoint %s is %s: %s", name, w.State, w.Why)
		case len(w.Kinds) > 0 && w.Kinds[0].State != api.KindReady:
			why = fmt.Errorf("%s at waypoint %s is %s: %s", w.Kinds[0].Kind, name, w.Kinds[0].State, w.Kinds[0].Why)
		default:
			return nil
		}
	}
	return why
}

// status asks a host's agent.
func (w *world) status(ctx context.Context, host string) (api.Status, error) {
	var s api.Status
	out, err := w.dcol(ctx, host, "status", "--json")
	if err == nil {
		err = json.Unmarshal(out, &s)
	}
	return s, err
}

// dcol runs a short dcol command.
func (w *world) dcol(ctx context.Context, host string, args ...string) ([]byte, error) {
	return w.run(ctx, host, append([]string{w.programs.DCol}, args...)...)
}

// run runs a short command on a host and returns what it says.
func (w *world) run(ctx context.Context, host string, argv ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, commandLimit)
	defer cancel()
	cmd := w.host(host).Command(ctx, argv[0], argv[1:]...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s on %s: %w: %s", strings.Join(argv, " "), host, err, strings.TrimSpace(said.String()))
	}
	return out, nil
}

// config is the configuration of a member's agent.
func (w *world) config(name string) map[string]any {
	dir := w.identityDir()
	c := map[string]any{
		"name": name, "log_level": "debug",
		"identity": map[string]any{
			"certificate": dir + "member.crt", "key": dir + "member.key", "ca": dir + "ca.crt", "crl": dir + "ca.crl",
		},
	}
	if w.plan.Coordinator {
		c["collective"] = map[string]any{"coordinators": []string{w.coordinator()}}
		if slices.Contains(w.waypoints, name) { // else it names all that it has, IPv6 ones among them
			c["collective"].(map[string]any)["addresses"] = []string{w.host(name).Addr4().String()}
		}
	}
	switch name {
	case alice:
		c["roles"] = []string{"client"}
		c["client"] = map[string]any{
			"subflows": w.plan.Subflows, "kinds": w.plan.Kinds, "waypoint": w.waypointTables(),
			"exclude": []string{}, // by default private addresses, which the lab's are
		}
	case hub:
		c["roles"] = []string{"coordinator"}
		c["coordinator"] = map[string]any{"addresses": []string{w.host(hub).Addr4().String()}}
	default:
		c["roles"] = []string{"waypoint"}
		c["waypoint"] = map[string]any{
			"offers": w.plan.Kinds, "port_mapping": false,
			// All addresses of the lab are private, and so denied but for this one.
			"allow": []string{netip.PrefixFrom(w.host(server).Addr4(), 32).String()},
		}
	}
	return c
}

// forbidden is one of the addresses that every waypoint's policy denies.
func (w *world) forbidden() netip.Addr { return w.host(mallory).Addr4() }

// waypointTables are the waypoints in the client's configuration: with a
// coordinator only the liar, which is in no directory.
func (w *world) waypointTables() []map[string]any {
	names := w.allWaypoints()
	if w.plan.Coordinator {
		names = names[len(w.waypoints):]
	}
	tables := []map[string]any{}
	for _, name := range names {
		tables = append(tables, map[string]any{"name": name, "addresses": []string{w.host(name).Addr4().String()}})
	}
	return tables
}

// coordinator is the coordinator as members' configurations name it.
func (w *world) coordinator() string { return fmt.Sprintf("%s@%v:45672", hub, w.host(hub).Addr4()) }

// startCollective founds a collective on the hub and has everybody join it.
func (w *world) startCollective(ctx context.Context) error {
	_, err := w.dcol(ctx, hub, "init", "friends", "--address", w.host(hub).Addr4().String(), "--no-start")
	if err := w.blame(ctx, "nothing was founded", err); err != nil {
		return err
	}
	data, err := toml.Marshal(w.config(hub))
	if err == nil {
		err = w.write(hub, config.DefaultPath, data)
	}
	if err != nil {
		return fmt.Errorf("configure %s: %w", hub, err)
	}
	w.agents[hub] = &agent{w: w, host: hub}
	if err := w.agents[hub].start(); err != nil {
		return err
	}
	for _, name := range append([]string{alice, mallory}, w.allWaypoints()...) {
		if err := w.join(ctx, name); err != nil {
			return err
		}
	}
	return w.startAll(ctx)
}

// join makes a host a member by an invitation.
func (w *world) join(ctx context.Context, name string) error {
	var line []byte
	err := within(ctx, readyLimit, 300*time.Millisecond, func() (err error) {
		line, err = w.dcol(ctx, hub, "invite", "--name", name)
		return err
	})
	if err == nil {
		_, err = w.dcol(ctx, name, "join", strings.TrimSpace(string(line)), "--no-start")
	}
	return w.blame(ctx, name+" did not join", err)
}

// within polls a condition, which says why it does not hold yet.
func within(ctx context.Context, limit, interval time.Duration, condition func() error) error {
	deadline := time.Now().Add(limit)
	for {
		err := condition()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(deadline):
			return fmt.Errorf("not within %v: %w", limit, err)
		}
		select {
		case <-time.After(interval):
		case <-ctx.Done():
		}
	}
}
