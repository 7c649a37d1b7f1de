package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/detour-collective/dcol/lab/crew"
	"github.com/detour-collective/dcol/lab/testbed"
)

const etc = "/etc/dcol/"

// caDir returns where the authority of a collective lies, off the network.
func (w *world) caDir(collective string) string { return filepath.Join(w.dir, collective) }

// found makes an authority and members, with `dcol ca`. Worlds with the same members get copies of one authority.
func (w *world) found(collective string, members ...string) {
	w.Helper()
	w.run(server, "cp", "--archive", w.founded(collective, members), w.caDir(collective))
}

// authorities are the folders that found copies, by collective and members.
var authorities = struct {
	sync.Mutex
	dirs map[string]string
}{dirs: map[string]string{}}

func (w *world) founded(collective string, members []string) string {
	w.Helper()
	authorities.Lock()
	defer authorities.Unlock()
	key := fmt.Sprint(collective, members)
	if dir := authorities.dirs[key]; dir != "" {
		return dir
	}
	dir, err := os.MkdirTemp(suiteDir, "authority-")
	if err != nil {
		w.Fatal(err)
	}
	w.dcol(server, "ca", "init", "--dir", dir, "--name", collective)
	for _, name := range members {
		w.dcol(server, "ca", "issue", name, "--dir", dir)
	}
	authorities.dirs[key] = dir
	return dir
}

// carry copies files of the authority to a member's host.
func (w *world) carry(collective, host string, files ...string) {
	w.Helper()
	for _, name := range files {
		data, err := os.ReadFile(filepath.Join(w.caDir(collective), name))
		if err != nil {
			w.Fatal(err)
		}
		mode := os.FileMode(0o644)
		if filepath.Ext(name) == ".key" {
			mode = 0o600
		}
		w.write(host, etc+name, data, mode)
	}
	if w.last(host) == nil {
		return
	}
	if err := crew.HandOver(w.host(host)); err != nil { // as systemctl reload does
		w.Fatal(err)
	}
}

// identify gives a host all files of a member.
func (w *world) identify(collective, host string) {
	w.Helper()
	w.carry(collective, host, "ca.crt", "ca.crl", host+".crt", host+".key")
}

const identityTable = `
[identity]
certificate = "/etc/dcol/%[1]s.crt"
key         = "/etc/dcol/%[1]s.key"
ca          = "/etc/dcol/ca.crt"
crl         = "/etc/dcol/ca.crl"
`

// clientConfig returns alice's configuration with mapped detours only. Most tests use these. What differs for
// other kinds has separate tests.
func clientConfig(more string, waypointAddrs ...string) string {
	return clientOfAll(kindsLine("mapped")+more, waypointAddrs...)
}

// kindsLine returns the line of the client's configuration that chooses kinds of detours.
func kindsLine(kinds ...string) string {
	return `kinds = ["` + strings.Join(kinds, `", "`) + "\"]\n"
}

// clientOfAll is alice's configuration with what is there by default. Only that private
// addresses, which the lab has, get detours too.
func clientOfAll(more string, waypointAddrs ...string) string {
	return fmt.Sprintf("name = %q\nroles = [\"client\"]\nlog_level = \"debug\"\n", alice) + fmt.Sprintf(identityTable, alice) + `
[client]
exclude = []
selection = "oldest" # the detours carry whatever a test sends
` + more + fmt.Sprintf(`
[[client.waypoint]]
name      = %q
addresses = ["%s"]
`, bob, strings.Join(waypointAddrs, `", "`))
}

// waypointConfig is bob's.
func waypointConfig(more string) string {
	return fmt.Sprintf("name = %q\nroles = [\"waypoint\"]\nlog_level = \"debug\"\n", bob) + fmt.Sprintf(identityTable, bob) + `
[waypoint]
` + more
}

// labAllowed opens the lab's addresses, which are private.
const labAllowed = "allow = [\"10.0.0.0/8\", \"fd00::/8\"]\n"

func (w *world) configure(host, config string) {
	w.Helper()
	w.write(host, etc+"dcol.toml", []byte(config), 0o644)
}

// standard returns a collective of alice and bob, configured for mapped detours, on a network with a web
// server. serves adds files to the server. No agent runs yet.
func standard(w *world, serves ...string) *world {
	w.Helper()
	w.found("collective", alice, bob)
	w.identify("collective", alice)
	w.identify("collective", bob)
	w.configure(alice, clientConfig("", w.addr4(bob).String()))
	w.configure(bob, waypointConfig(labAllowed))
	w.serve(serves...)
	return w
}

// withKinds is standard with these kinds of detours at both ends; none: those of the
// default configuration.
func withKinds(w *world, kinds ...string) *world {
	w.Helper()
	standard(w)
	w.useKinds(kinds...)
	return w
}

func (w *world) useKinds(kinds ...string) {
	w.Helper()
	var uses, offers string
	if len(kinds) > 0 {
		uses = kindsLine(kinds...)
		offers = strings.Replace(uses, "kinds", "offers", 1)
	}
	w.configure(alice, clientOfAll(uses, w.addr4(bob).String()))
	w.configure(bob, waypointConfig(labAllowed+offers))
}

// agent is `dcol agent` on a host.
type agent struct {
	w     *world
	host  string
	log   string
	cmd   *testbed.Cmd
	ended chan struct{}
	err   error // once ended
}

var agentsStarted atomic.Int64

// launch starts an agent with the user and the rights that packaging/dcol.service gives it, and no more.
func (w *world) launch(host string) *agent {
	w.Helper()
	a := &agent{
		w: w, host: host, ended: make(chan struct{}),
		log: filepath.Join(w.dir, fmt.Sprintf("agent-%s-%d.log", host, agentsStarted.Add(1))),
	}
	f, err := os.Create(a.log)
	if err != nil {
		w.Fatal(err)
	}
	argv, err := crew.Confined(w.host(host), program)
	if err != nil {
		w.Fatal(err)
	}
	a.cmd = w.host(host).Command(w.life(), argv[0], argv[1:]...)
	a.cmd.Stdout, a.cmd.Stderr = f, f
	if err := a.cmd.Start(); err != nil {
		w.Fatal(err)
	}
	w.agents = append(w.agents, a)
	go func() {
		a.err = a.cmd.Wait()
		f.Close()
		close(a.ended)
	}()
	return a
}

// start starts an agent and waits until it answers.
func (w *world) start(host string) *agent {
	w.Helper()
	a := w.launch(host)
	w.eventually("the agent of "+host+" answers", func() error {
		select {
		case <-a.ended:
			w.Fatalf("the agent of %s ended: %v", host, a.err)
		default:
		}
		_, err := w.status(host)
		return err
	})
	return a
}

// startBoth starts alice and bob, and waits for the session between them.
func (w *world) startBoth() (ofAlice, ofBob *agent) {
	w.Helper()
	ofBob, ofAlice = w.start(bob), w.start(alice)
	w.waypointUp()
	return ofAlice, ofBob
}

// restart stops a host's agent and starts another.
func (w *world) restart(host string) *agent {
	w.Helper()
	if a := w.last(host); a != nil {
		a.stop()
	}
	return w.start(host)
}

// last returns the agent of a host that was started last, or nil.
func (w *world) last(host string) *agent {
	for _, a := range slices.Backward(w.agents) {
		if a.host == host {
			return a
		}
	}
	return nil
}

// stop ends the agent as systemd does.
func (a *agent) stop() {
	a.w.Helper()
	a.signal(syscall.SIGTERM)
	if a.err != nil {
		a.w.Errorf("the agent of %s did not end well: %v", a.host, a.err)
	}
}

// kill ends the agent as a crash does.
func (a *agent) kill() { a.w.Helper(); a.signal(syscall.SIGKILL) }

func (a *agent) signal(s syscall.Signal) {
	a.w.Helper()
	if err := a.cmd.Process.Signal(s); err != nil {
		a.w.Fatalf("signal the agent of %s: %v", a.host, err)
	}
	select {
	case <-a.ended:
	case <-time.After(patience):
		a.w.Fatalf("the agent of %s still runs after %v", a.host, patience)
	}
}
