package openvpn

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
	"github.com/detour-collective/dcol/internal/vpn"
)

// Some tests need an agent that is a process of its own: to take rights from it, or to kill it. It
// is this test program again, told by its environment to be one.
const agentRole = "DCOL_OPENVPN_TEST_AGENT"

type role struct {
	Server *ServerConfig
	Client *clientRole
	Member string // whom the server admits
	Addrs  []netip.Prefix
}

// clientRole has the parts of a ClientConfig that can be written as text.
type clientRole struct {
	Interface, ServerName string
	Remote                netip.AddrPort
	Files                 Files
	MTU                   int
}

// beAgent plays the role until its standard input ends, and says how that went line by line.
func beAgent(text string) {
	if err := playRole(text); err != nil {
		fmt.Printf("%T: %v\n", root(err), err)
		os.Exit(1)
	}
	fmt.Println("stopped")
}

func playRole(text string) error {
	var r role
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	if r.Server != nil {
		r.Server.Log = log
		s, err := StartServer(context.Background(), *r.Server)
		if err != nil {
			return err
		}
		defer s.Stop()
		if err := s.Admit(r.Member, r.Addrs); err != nil {
			return err
		}
	}
	if r.Client != nil {
		c, err := StartClient(context.Background(), ClientConfig{
			Interface: r.Client.Interface, ServerName: r.Client.ServerName,
			Remote: r.Client.Remote, Files: r.Client.Files, MTU: r.Client.MTU, Log: log,
		})
		if err != nil {
			return err
		}
		defer c.Stop()
		for !c.State().Connected {
			time.Sleep(10 * time.Millisecond)
		}
	}
	fmt.Println("ready")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// root is the error in a chain whose type matters.
func root(err error) error {
	var tun *vpn.TUNError
	if errors.As(err, &tun) {
		return tun
	}
	return err
}

type agent struct {
	t     *testing.T
	cmd   *exec.Cmd
	life  io.Closer
	said  *bufio.Reader
	ended chan error
}

// startAgent runs an agent in a namespace, by way of a program such as setpriv where one is given.
func startAgent(t *testing.T, ns *netnstest.NS, r role, by ...string) *agent {
	t.Helper()
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args := append(slices.Clone(by), exe)
	a := &agent{t: t, cmd: exec.Command(args[0], args[1:]...), ended: make(chan error, 1)}
	a.cmd.Env = append(os.Environ(), agentRole+"="+string(text))
	log := &strings.Builder{}
	a.cmd.Stderr = log
	stdin, err := a.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	a.life = stdin
	said, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	a.cmd.Stdout = out
	a.said = bufio.NewReader(said)
	ns.Must(t, a.cmd.Start)
	out.Close()
	go func() { a.ended <- a.cmd.Wait() }()
	t.Cleanup(func() {
		a.life.Close()
		late := time.AfterFunc(20*time.Second, func() { a.cmd.Process.Kill() })
		<-a.ended
		late.Stop()
		said.Close()
		if t.Failed() {
			t.Logf("the agent's log:\n%s", log)
		}
	})
	return a
}

// hear is the next line that the agent says.
func (a *agent) hear() string {
	a.t.Helper()
	line, err := a.said.ReadString('\n')
	if err != nil {
		a.t.Fatalf("the agent said no more: %v", err)
	}
	return strings.TrimSpace(line)
}

func (a *agent) expect(want string) {
	a.t.Helper()
	if got := a.hear(); !strings.HasPrefix(got, want) {
		a.t.Fatalf("the agent said %q, not %q", got, want)
	}
}

// crash kills the agent, so that it cannot clear up.
func (a *agent) crash() {
	a.t.Helper()
	if err := a.cmd.Process.Kill(); err != nil {
		a.t.Fatal(err)
	}
	err := <-a.ended
	a.ended <- err
}

func withRights(rights string) []string {
	return []string{"setpriv", "--bounding-set", "-all" + rights, "--inh-caps", "-all" + rights}
}

// asUser returns how a program runs as the agent's unit runs it: as a user without root's rights, and with CAP_NET_ADMIN. It
// gives the test's folders to the user, and a copy of this program, because others cannot run it where it is.
func asUser(t *testing.T) []string {
	t.Helper()
	const user = 65534
	folder := t.TempDir()
	program := filepath.Join(folder, "program")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", exe, program).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	err = filepath.WalkDir(filepath.Dir(folder), func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, user, user))
	})
	if err != nil {
		t.Fatal(err)
	}
	id := fmt.Sprint(user)
	// udev lets all users open this device. Not every machine for tests has udev.
	const device = `mount -t tmpfs none /dev/net && mknod -m 666 /dev/net/tun c 10 200 && exec "$0" "$@"`
	return []string{
		"unshare", "--mount", "sh", "-c", device,
		"setpriv", "--reuid", id, "--regid", id, "--clear-groups", "--no-new-privs", "--bounding-set", "-all,+net_admin",
		"--inh-caps", "-all,+net_admin", "--ambient-caps", "-all,+net_admin", "sh", "-c", "exec " + program,
	}
}

// The agent's unit leaves it CAP_NET_ADMIN alone for tunnels, and nothing of root's.
func TestRightsOfTheUnit(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	sc, cc := n.serverConfig(), n.clientConfig("alice", bobAtAlice)
	sc.Log = nil
	by := asUser(t)
	server := startAgent(t, n.bob, role{Server: &sc, Member: "alice", Addrs: aliceIn}, by...)
	server.expect("ready")
	addresses(t, n.bob, serverIf, tunnelMTU, bobTunnel)
	client := startAgent(t, n.alice, role{Client: &clientRole{
		Interface: cc.Interface, ServerName: cc.ServerName, Remote: cc.Remote, Files: cc.Files, MTU: cc.MTU,
	}}, by...)
	client.expect("ready")
	addresses(t, n.alice, clientIf, tunnelMTU, aliceIn[0].String())
	echo(t, n.bob, "10.77.0.1:7")
	works(t, n.alice, aliceIn[0].Addr(), "10.77.0.1:7")
	for _, a := range []*agent{client, server} {
		a.life.Close()
		a.expect("stopped")
	}
	if links := n.bob.Output(t, "ip", "-o", "link"); strings.Contains(links, serverIf) {
		t.Errorf("%s is still there:\n%s", serverIf, links)
	}
}

func TestNoTUN(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	sc := n.serverConfig()
	sc.Log = nil
	for name, test := range map[string]struct {
		by  []string
		fix string
	}{
		"no device": {[]string{"unshare", "--mount", "sh", "-c", `mount -t tmpfs none /dev/net && exec "$0"`}, "modprobe tun"},
		"no rights": {withRights(""), "CAP_NET_ADMIN"},
	} {
		t.Run(name, func(t *testing.T) {
			said := startAgent(t, n.bob, role{Server: &sc}, test.by...).hear()
			if !strings.HasPrefix(said, "*vpn.TUNError: ") || !strings.Contains(said, test.fix) {
				t.Errorf("the error is %q, want a TUNError that says %q", said, test.fix)
			}
		})
	}
}

// An agent is killed: its openvpn ends with it, also one that hangs. The next agent takes over what is
// left, and the interface keeps its addresses all the while.
func TestAgentCrashes(t *testing.T) {
	for name, hangs := range map[string]bool{"openvpn ends": false, "openvpn hangs": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t)
			c := n.serverConfig()
			log := c.Log
			c.Log = nil
			first := startAgent(t, n.bob, role{Server: &c, Member: "carol", Addrs: carolIn})
			first.expect("ready")
			addresses(t, n.bob, serverIf, tunnelMTU, bobTunnel)
			pid := pidIn(t, n.bob)
			gone := func() bool { return errors.Is(unix.Kill(pid, 0), unix.ESRCH) || processState(pid) == 'Z' }
			if hangs {
				if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
					t.Fatal(err)
				}
				stayInGroup(t, pid)
				waitFor(t, "openvpn to stop", func() bool { return processState(pid) == 'T' })
				t.Cleanup(func() { // if this test fails; it cannot have come to mean another process yet
					if !gone() {
						_ = unix.Kill(pid, unix.SIGKILL)
					}
				})
			}
			first.crash()
			waitFor(t, "openvpn to end with its agent", gone)
			if addrs := n.bob.Output(t, "ip", "addr", "show", "dev", serverIf); !strings.Contains(addrs, bobTunnel) {
				t.Errorf("the interface lost its address:\n%s", addrs)
			}

			c.Log = log
			var s *Server
			n.bob.Must(t, func() (err error) {
				s, err = StartServer(t.Context(), c)
				return err
			})
			defer s.Stop()
			echo(t, n.bob, "10.77.0.1:7")
			admit(t, s, "alice", aliceIn)
			n.connect(n.alice, n.clientConfig("alice", bobAtAlice), aliceIn)
			works(t, n.alice, aliceIn[0].Addr(), "10.77.0.1:7")
		})
	}
}

// stayInGroup runs a process of ours in a stopped one's group. When the parent of such a process
// ends and nobody else of the session has a child in the group, the kernel has it go on
// (setpgid(2), orphaned process groups).
func stayInGroup(t *testing.T, pid int) {
	t.Helper()
	cmd := exec.Command("sleep", "60")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pgid: pid}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
}

// processState is a process's state as in proc_pid_stat(5): T is stopped; Z has ended and only waits
// to be looked at, for which an orphan's new parent may take its time, and so has one that is not there.
func processState(pid int) byte {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 'Z'
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return rest[0]
}

// What a crashed agent has left in its folder goes; other files there stay.
func TestCleanUpDir(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	c := n.serverConfig()
	c.Log = nil
	first := startAgent(t, n.bob, role{Server: &c, Member: "carol", Addrs: carolIn})
	first.expect("ready")
	first.crash()
	if _, err := os.Stat(managementSocket(c.Dir)); err != nil {
		t.Fatalf("the agent left nothing; this test shows nothing: %v", err)
	}
	for range 2 {
		CleanUpDir(c.Dir)
		if _, err := os.Stat(c.Dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the folder is still there: %v", err)
		}
	}

	others := t.TempDir()
	if err := os.WriteFile(filepath.Join(others, "pid"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	CleanUpDir(others)
	if _, err := os.Stat(filepath.Join(others, "pid")); err != nil {
		t.Errorf("somebody else's file was removed: %v", err)
	}
}

func TestEndsWithItsContext(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	c := n.serverConfig()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var s *Server
	n.bob.Must(t, func() (err error) {
		s, err = StartServer(ctx, c)
		return err
	})
	pid := pidIn(t, n.bob)
	cancel()
	<-s.daemon.done
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("openvpn is still there: %v", err)
	}
	if err := n.bob.Do(func() error { // before it has started
		_, err := StartServer(ctx, c)
		return err
	}); !errors.Is(err, context.Canceled) {
		t.Errorf("started with a context that has ended: %v", err)
	}
}
