package waypoint

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// Answers to a member whose tunnel's interface is gone, as after the agent's end,
// do not leave in the clear by the way that the waypoint's routes lead.
func TestAnswersStayInTunnels(t *testing.T) {
	t.Parallel()
	n, _ := startTunnel(t)
	var l net.Listener
	n.server.Must(t, func() (err error) {
		l, err = net.Listen("tcp", "10.2.0.1:443")
		return err
	})
	defer l.Close()
	if _, err := n.from(t, tunnel4, netip.MustParseAddrPort("10.2.0.1:443")); err != nil {
		t.Fatal(err)
	}
	answering, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer answering.Close()
	// The waypoint's default route leads to the server's host.
	n.server.Output(t, "nft", "table ip watch { chain arriving { type filter hook prerouting priority 0; ip daddr 10.77.0.0/24 counter; }; }")
	n.waypoint.Output(t, "ip", "link", "delete", tunnelName)
	if _, err := answering.Write([]byte("something that only the member is to read")); err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); n.dropped(t, "forwarded") == 0; time.Sleep(50 * time.Millisecond) {
		if list := n.server.Output(t, "nft", "list", "table", "ip", "watch"); !strings.Contains(list, "counter packets 0") {
			t.Fatalf("an answer left in the clear:\n%s", list)
		}
		if time.Since(began) > 10*time.Second {
			t.Fatal("no answer came to the waypoint")
		}
	}
	if list := n.server.Output(t, "nft", "list", "table", "ip", "watch"); !strings.Contains(list, "counter packets 0") {
		t.Errorf("an answer left in the clear:\n%s", list)
	}
}
