package resets

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var update = flag.Bool("update", false, "write the golden file anew")

const port = 5124

// network is a converter's host and a client.
type network struct {
	host, client *netnstest.NS
	listener     net.Listener
}

func newNetwork(t *testing.T) network {
	t.Helper()
	n := network{host: netnstest.New(t), client: netnstest.New(t)}
	netnstest.Veth(t,
		netnstest.End{NS: n.host, Name: "eth0", Addresses: []string{"10.2.0.1/24", "fd02::1/64"}},
		netnstest.End{NS: n.client, Name: "eth0", Addresses: []string{"10.2.0.2/24", "fd02::2/64"}})
	var config net.ListenConfig
	config.SetMultipathTCP(true)
	n.host.Must(t, func() (err error) {
		n.listener, err = config.Listen(context.Background(), "tcp", fmt.Sprintf(":%d", port))
		return err
	})
	t.Cleanup(func() { _ = n.listener.Close() })
	return n
}

// repeat repeats resets until the test ends.
func (n network) repeat(t *testing.T) {
	t.Helper()
	var r *Repeater
	n.host.Must(t, func() (err error) { r, err = Open(port); return err })
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// connect connects by MPTCP, and returns both ends.
func (n network) connect(t *testing.T, to string) (client, converter *net.TCPConn) {
	t.Helper()
	d := net.Dialer{Timeout: 20 * time.Second}
	d.SetMultipathTCP(true)
	var c net.Conn
	n.client.Must(t, func() (err error) {
		c, err = d.DialContext(context.Background(), "tcp", netip.AddrPortFrom(netip.MustParseAddr(to), port).String())
		return err
	})
	t.Cleanup(func() { _ = c.Close() })
	accepted, err := n.listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	client, converter = c.(*net.TCPConn), accepted.(*net.TCPConn)
	if _, err := client.Write([]byte("x")); err != nil { // ends MPTCP's handshake
		t.Fatal(err)
	}
	if _, err := converter.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if multipath, err := converter.MultipathTCP(); err != nil || !multipath {
		t.Fatalf("the connection is plain TCP: %v", err)
	}
	return client, converter
}

// resetBy closes an end as the kernel does with those of a killed relay.
func resetBy(t *testing.T, c *net.TCPConn) {
	t.Helper()
	if err := errors.Join(c.SetLinger(0), c.Close()); err != nil {
		t.Fatal(err)
	}
}

// A client learns that its connection was reset although the RST was lost, or came behind bytes that were lost. The kernel
// alone lets it wait in both cases, and this client sends nothing.
func TestLost(t *testing.T) {
	for name, c := range map[string]struct {
		drop  string // what the client does not receive
		bytes int    // that the converter sends before the end
	}{
		"the reset":            {"tcp flags & rst == rst quota until 100 bytes drop", 0}, // one packet of up to 99 bytes
		"bytes before it":      {"meta length > 500 drop", 1000},
		"the reset and copies": {"tcp flags & rst == rst quota until 300 bytes drop", 0},
	} {
		for _, to := range []string{"10.2.0.1", "fd02::1"} {
			t.Run(name+" "+to, func(t *testing.T) {
				t.Parallel()
				n := newNetwork(t)
				n.repeat(t)
				client, converter := n.connect(t, to)
				n.client.Output(t, "nft", fmt.Sprintf(
					"table inet lost { chain in { type filter hook input priority 0; tcp sport %d %s; }; }", port, c.drop))
				if _, err := converter.Write(make([]byte, c.bytes)); err != nil {
					t.Fatal(err)
				}
				resetBy(t, converter)
				wantReset(t, client)
			})
		}
	}
}

// wantReset fails the test unless the next read of a client's end reports a reset, long before the kernel gives the
// connection up.
func wantReset(t *testing.T, client *net.TCPConn) {
	t.Helper()
	_ = client.SetDeadline(time.Now().Add(40 * time.Second))
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client got %v, want a reset", err)
	}
}

// A client that sends, and has lost the reset, gets its error too: the kernel's answer to its data would end the subflow only.
func TestSender(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.repeat(t)
	client, converter := n.connect(t, "10.2.0.1")
	n.client.Output(t, "nft", fmt.Sprintf("table inet lost { chain in { type filter hook input priority 0; tcp sport %d tcp flags & rst == rst quota until 100 bytes drop; }; }", port))
	resetBy(t, converter)
	_ = client.SetDeadline(time.Now().Add(40 * time.Second))
	var err error
	for err == nil {
		_, err = client.Write(make([]byte, 1000))
	}
	if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, unix.EPIPE) {
		t.Errorf("the client got %v, want a reset", err)
	}
}

// A reset of a connection that is plain TCP, or of another port, is left alone. So are those of subflows whose connection
// goes on.
func TestOthersAreLeftAlone(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.repeat(t)
	plain, err := n.client.Dial(t.Context(), netip.MustParseAddrPort("10.2.0.1:5124"))
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	accepted, err := n.listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	resetBy(t, accepted.(*net.TCPConn))
	wantReset(t, plain.(*net.TCPConn))
	if _, err := n.client.Dial(t.Context(), netip.MustParseAddrPort("10.2.0.1:81")); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a port where nobody listens: %v", err)
	}
	if got := n.host.Output(t, "nft", "list", "set", "inet", table.Name, families[0].ended.Name); len(got) == 0 || strings.Contains(got, "elements") {
		t.Errorf("subflows are remembered:\n%s", got)
	}
}

// A person can read the table.
func TestTable(t *testing.T) {
	n := newNetwork(t)
	n.repeat(t)
	got := n.host.Table(t, table.Name)
	if i := strings.Index(got, "\tflags owner"); i >= 0 { // nft names the owner's process before
		got = got[i:]
	}
	netnstest.CompareTable(t, filepath.Join("testdata", "table.nft"), got, *update)
}
