package option

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/tcpopt"
)

// manyDialer is the variable by which this program is a process that opens many connections: the address of their server.
const manyDialer = "DCOL_TEST_DIAL"

const manyConnections = 10000

// dialMany opens the connections, says so in a line, and keeps them until its input ends.
func dialMany(address string) error {
	const dialers = 8
	lists := make([][]net.Conn, dialers)
	var group errgroup.Group
	for i := range dialers {
		group.Go(func() error {
			for range manyConnections / dialers {
				var dialer net.Dialer
				dialer.SetMultipathTCP(false)
				c, err := dialer.Dial("tcp", address)
				if err != nil {
					return err
				}
				lists[i] = append(lists[i], c)
			}
			return nil
		})
	}
	err := group.Wait()
	if err == nil {
		fmt.Println("open")
		_, _ = bufio.NewReader(os.Stdin).ReadByte()
	}
	for _, list := range lists {
		for _, c := range list {
			c.Close()
		}
	}
	return err
}

// Ten thousand connections are open at once, and each has what its client asked. The program is called a few times for each.
func TestManyConnections(t *testing.T) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Cur < manyConnections+500 {
		t.Skipf("needs %d open files (ulimit -n): %d, %v", manyConnections+500, limit.Cur, err)
	}
	h := newHosts(t)
	asking := open(t, h.client, Config{Ask: []tcpopt.Request{{Option: tcpopt.Congestion, Value: 1}}})
	granted := open(t, h.server, granting())
	l := listen(t, h.server, serverAddress, false)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dialer := exec.Command(self)
	dialer.Env = append(os.Environ(), manyDialer+"="+l.Addr().String())
	in, out := h.client.Start(t, dialer, "")
	defer in.Close()
	without := 0
	var accepted []net.Conn
	defer func() {
		for _, c := range accepted {
			c.Close()
		}
	}()
	for range manyConnections {
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		accepted = append(accepted, c)
		if congestionOf(t, c) != "reno" {
			without++
		}
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "open\n" {
		t.Fatalf("the connections are not open: %q, %v", line, err)
	}
	if without > 0 {
		t.Errorf("%d connections have not what was asked", without)
	}
	for name, x := range map[string]*observed{"client": asking, "server": granted} {
		calls, err := x.Calls()
		if err != nil || calls > 20*manyConnections {
			t.Errorf("%s: %d calls, %v", name, calls, err)
		}
		t.Logf("%s: %d calls", name, calls)
	}
}
