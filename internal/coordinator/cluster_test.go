package coordinator

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/detour-collective/dcol/internal/bus"
	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/coordinator/registrar"
	"github.com/detour-collective/dcol/internal/enrol"
)

// asNatsServer makes the test program run as nats-server, of the pinned module, so that no other program need be
// built.
const asNatsServer = "DCOL_TEST_NATS_SERVER"

func TestMain(m *testing.M) {
	if config := os.Getenv(asNatsServer); config != "" {
		if err := natsServer(config); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func natsServer(config string) error {
	options, err := server.ConfigureOptions(flag.NewFlagSet("nats-server", flag.ContinueOnError), []string{"-c", config}, nil, nil, nil)
	if err != nil {
		return err
	}
	s, err := server.NewServer(options)
	if err != nil {
		return err
	}
	if err := server.Run(s); err != nil {
		return err
	}
	s.WaitForShutdown()
	return nil
}

// nats is one server of a cluster.
type nats struct {
	enrol.Endpoint
	config string
	cmd    *exec.Cmd
}

// cluster starts three servers with the files that ServerConfig writes, as an operator would.
func (w *world) cluster() (all []*nats) {
	w.t.Helper()
	ca, err := collective.OpenCA(registrar.CADir(w.dir))
	if err != nil {
		w.t.Fatal(err)
	}
	authority, err := bus.OpenAuthority(busDir(w.dir))
	if err != nil {
		w.t.Fatal(err)
	}
	pid := os.Getpid() // an address that only this process uses, so that the ports are free
	host := net.IPv4(127, byte(128|pid>>16), byte(pid>>8), byte(pid)).String()
	var routes []string
	for i := range 3 {
		routes = append(routes, fmt.Sprintf("nats-route://%s:%d", host, 6222+i))
	}
	for i := range 3 {
		issued, err := ca.Issue(collective.Request{Name: fmt.Sprintf("nats%d", i+1), Validity: time.Hour})
		if err != nil {
			w.t.Fatal(err)
		}
		dir := w.t.TempDir()
		n := &nats{Endpoint: enrol.Endpoint{Name: issued.Name, Address: fmt.Sprintf("%s:%d", host, 4222+i)}, config: filepath.Join(dir, "server.conf")}
		text, err := authority.ServerConfig(bus.External{
			Name: n.Name, Listen: n.Address, Dir: dir, Certificate: issued.CertFile, Key: issued.KeyFile, CA: ca.CertFile(),
		})
		if err != nil {
			w.t.Fatal(err)
		}
		own := fmt.Sprintf("cluster {\n name: dcol\n listen: %q\n routes: [%s]\n}\n", strings.TrimPrefix(routes[i], "nats-route://"), strings.Join(routes, ", "))
		for file, text := range map[string]string{n.config: text, filepath.Join(dir, "cluster.conf"): own} {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				w.t.Fatal(err)
			}
		}
		n.start(w.t)
		all = append(all, n)
	}
	return all
}

func (n *nats) start(t testing.TB) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	n.cmd = exec.Command(self)
	n.cmd.Env = append(os.Environ(), asNatsServer+"="+n.config)
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := n.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.kill)
}

// kill ends it as a power cut would.
func (n *nats) kill() {
	n.cmd.Process.Kill()
	n.cmd.Wait() // the error only shows that it was killed
}

// The same coordinator, with an external cluster by its configuration alone: hosts join, publish and are
// expelled, also when one of three servers is killed, and a host that was expelled while all were away does
// not get back.
func TestExternalCluster(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	servers := w.cluster()
	for _, s := range servers {
		w.bus = append(w.bus, s.Endpoint)
	}
	w.reopen()
	w.run()
	alpha, beta, gamma := w.member("alpha"), w.member("beta"), w.member("gamma")
	if err := alpha.publish(alpha.record()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "beta is told of alpha's record", 10*time.Second, func() bool { return beta.last(enrol.TopicDirectory) != nil })

	killed := servers[0]
	for _, s := range servers {
		if s.Name == beta.bus.State().Server {
			killed = s
		}
	}
	killed.kill()
	eventually(t, "all are connected to the others", 30*time.Second, func() bool {
		for _, state := range []bus.State{alpha.bus.State(), beta.bus.State(), gamma.bus.State(), *w.c.Status().Connected} {
			if !state.Connected || state.Server == killed.Name {
				return false
			}
		}
		return true
	})
	eventually(t, "beta's record is taken", 30*time.Second, func() bool {
		err := beta.publish(beta.record())
		if err != nil {
			t.Log(err)
			time.Sleep(time.Second)
		}
		return err == nil
	})
	eventually(t, "alpha is expelled", 30*time.Second, func() bool {
		err := w.c.Expel(t.Context(), "alpha", "it spies")
		if err != nil && !errors.Is(err, ErrNotTold) {
			t.Fatal(err)
		}
		return err == nil
	})
	w.wantOut(alpha, beta)

	for _, s := range servers {
		if s != killed {
			s.kill()
		}
	}
	if err := w.c.Expel(t.Context(), "gamma", "it spies too"); !errors.Is(err, ErrNotTold) {
		t.Fatalf("without a bus: %v", err)
	}
	for _, s := range servers {
		s.start(t)
	}
	eventually(t, "everybody knows of gamma", 90*time.Second, func() bool { return len(w.c.Status().Untold) == 0 })
	eventually(t, "beta is back", 90*time.Second, func() bool { return beta.bus.State().Connected })
	wantRefusal(t, gamma.renew(), enrol.Expelled)
	time.Sleep(3 * time.Second) // servers that were away learn of it within 2 s
	if gamma.bus.State().Connected {
		t.Error("gamma got back")
	}
	eventually(t, "the directory is as it was", 30*time.Second, func() bool {
		d := w.c.Status().Directory
		return d != nil && d.Members == 1
	})
}
