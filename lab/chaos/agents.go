package chaos

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/lab/chaos/plan"
	"github.com/detour-collective/dcol/lab/chaos/twin"
	"github.com/detour-collective/dcol/lab/crew"
)

const (
	// readyLimit limits how long agents take until they are ready on a busy machine.
	readyLimit = time.Minute
	// commandLimit limits how long a short command may take.
	commandLimit = 30 * time.Second
)

// agent is `dcol agent` on a host, or the place of one that has ended.
type agent struct {
	w    *world
	host string

	mu      sync.Mutex // one change at a time
	process *crew.Process
	ended   chan struct{} // closed when the end of the process has been judged
	runs    int
	began   time.Time      // this run
	struck  syscall.Signal // the signal sent to end this run; 0: none
}

// start starts the agent, unless it runs.
func (a *agent) start() (err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.runningLocked() {
		return nil
	}
	a.runs, a.began, a.struck = a.runs+1, time.Now(), 0
	argv, err := crew.Confined(a.w.Host(a.host), a.w.Programs.DCol)
	if err != nil {
		return err
	}
	a.process, err = a.w.Start(a.w.life, a.host, "agent", argv...)
	if err != nil {
		return err
	}
	a.ended = make(chan struct{})
	go a.judgeEnd(a.process, a.ended, a.runs)
	return nil
}

// judgeEnd waits for the end of a run.
func (a *agent) judgeEnd(p *crew.Process, ended chan struct{}, run int) {
	<-p.Ended()
	a.mu.Lock()
	struck := a.struck // the next run begins when ended is closed
	a.mu.Unlock()
	if a.w.life.Err() == nil {
		if failure := failureOf(fmt.Sprintf("the agent of %s (start %d)", a.host, run), struck, p.Err()); failure != "" {
			a.w.failures.add("%s", failure)
		}
	}
	close(ended)
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

// age returns the time since the agent was started.
func (a *agent) age() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return time.Since(a.began)
}

// signal sends a signal, if the agent runs. It reports whether it sent the signal.
func (a *agent) signal(s syscall.Signal) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.runningLocked() && a.process.Signal(s) == nil
}

// end sends a signal that is to end the agent, if it runs. It reports whether it sent the signal.
func (a *agent) end(s syscall.Signal) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.runningLocked() {
		return false
	}
	if a.struck != syscall.SIGKILL {
		a.struck = s
	}
	return a.process.Signal(s) == nil
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

// startAll starts the agents of all members, and waits until the client can use every honest waypoint.
func (w *world) startAll(ctx context.Context) error {
	for _, name := range w.members() {
		if err := w.startAgent(name); err != nil {
			return err
		}
	}
	err := crew.Await(ctx, readyLimit, 300*time.Millisecond, func() error {
		s, err := w.status(ctx, alice)
		if err != nil {
			return err
		}
		if err := crew.Ready(s, w.waypoints, w.plan.Kinds[0]); err != nil || w.plan.Converter == "" {
			return err
		}
		err = crew.ConverterReady(s, []string{converter}, w.plan.Converter == plan.ByProxy)
		if err == nil && w.plan.Converter == plan.ByGateway {
			err = w.GatewayReady(ctx, alice, s)
		}
		return err
	})
	return w.failed(ctx, "the collective did not come up", err)
}

// startAgent configures a member's agent and starts it, unless it runs.
func (w *world) startAgent(name string) error {
	if err := w.Configure(name, w.config(name)); err != nil {
		return err
	}
	if w.agents[name] == nil {
		w.agents[name] = &agent{w: w, host: name}
	}
	return w.agents[name].start()
}

// answer asks every member's agent for its status. An agent that hangs does not answer.
func (w *world) answer(ctx context.Context) {
	for _, name := range w.members() {
		_, err := w.status(ctx, name)
		_ = w.failed(ctx, "the agent of "+name+" does not answer", err) // noted; the sequence goes on
	}
}

// status asks a host's agent.
func (w *world) status(ctx context.Context, host string) (api.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, commandLimit)
	defer cancel()
	return w.Status(ctx, host)
}

// run runs a short command on a host and returns its output.
func (w *world) run(ctx context.Context, host string, argv ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, commandLimit)
	defer cancel()
	return w.Run(ctx, host, argv...)
}

// config returns the configuration of a member's agent.
func (w *world) config(name string) crew.Agent {
	a := crew.Agent{Over: crew.Settings{"log_level": "debug"}}
	if w.plan.Coordinator {
		a.Coordinator = crew.Coordinator(hub, w.Host(hub).Addr())
		if slices.Contains(w.waypoints, name) { // else it names all that it has, IPv6 ones among them
			a.Collective = crew.Settings{"addresses": []string{w.Host(name).Addr().String()}}
		}
	}
	switch name {
	case alice:
		a.Client = crew.Settings{
			"subflows": w.plan.Subflows, "kinds": w.plan.Kinds, "waypoint": w.listedWaypoints(),
			"exclude": []string{}, // by default private addresses, which the lab's are
		}
		if w.plan.Converter != "" {
			a.Client["converter"] = w.converting()
		}
	case converter:
		a.Waypoint = crew.Settings{
			"offers": []string{"converter"}, "port_mapping": false,
			"allow": []string{alone(w.Host(server).Addr()).String()},
		}
	case hub:
		a.Coordinate = crew.Settings{"addresses": []string{w.Host(hub).Addr().String()}}
	default:
		// All addresses of the lab are private, and so denied by default. These are allowed.
		allowed := []string{alone(w.Host(server).Addr()).String()}
		if w.plan.Converter != "" {
			allowed = append(allowed, alone(w.Host(converter).Addr()).String())
		}
		a.Waypoint = crew.Settings{"offers": w.plan.Kinds, "port_mapping": false, "allow": allowed}
	}
	return a
}

// converting returns the client's settings for the use of the converter.
func (w *world) converting() crew.Settings {
	settings := crew.Settings{"use": "always"}
	if w.plan.Converter == plan.ByProxy {
		settings["proxy"] = proxy.String()
		return settings
	}
	var twins []uint16
	for _, s := range w.plan.Streams {
		if s.Converted {
			twins = append(twins, twin.TwinPort(s))
		}
	}
	settings["gateway"], settings["exclude_ports"] = []string{w.Host(alice).Interface(phone)}, twins
	return settings
}

// alone returns the prefix that has only this address.
func alone(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// forbidden returns an address that every waypoint's policy denies.
func (w *world) forbidden() netip.Addr { return w.Host(mallory).Addr() }

// listedWaypoints returns the waypoints in the client's configuration. With a coordinator
// that is only the liar, which is in no directory.
func (w *world) listedWaypoints() []crew.Waypoint {
	names := w.allWaypoints()
	if w.plan.Coordinator {
		names = names[len(w.waypoints):]
	}
	if w.plan.Converter != "" {
		names = append(slices.Clone(names), converter)
	}
	listed := []crew.Waypoint{}
	for _, name := range names {
		listed = append(listed, crew.Waypoint{Name: name, Addresses: []netip.Addr{w.Host(name).Addr()}})
	}
	return listed
}

// makeMembers gives all members their identities: by a coordinator, or by an authority.
func (w *world) makeMembers(ctx context.Context) error {
	others := append([]string{alice, mallory}, w.allWaypoints()...)
	if w.plan.Converter != "" {
		others = append(others, converter)
	}
	if !w.plan.Coordinator {
		return w.Issue(others...)
	}
	if err := w.failed(ctx, "no collective was founded", w.Found(ctx, hub, "friends")); err != nil {
		return err
	}
	if err := w.startAgent(hub); err != nil {
		return err
	}
	for _, name := range others {
		if err := w.failed(ctx, name+" did not join", w.Join(ctx, hub, name)); err != nil {
			return err
		}
	}
	return nil
}
