package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/lab/testbed"
)

// A host with two uplinks serves clients of the kernel's path manager. Each of eight connections learns of the second address,
// although 30 % of the acknowledgements without data are lost in both directions. When the host loses that address, each
// learns of that, too, and ends its subflow, which would stay for a quarter of an hour otherwise.
//
// Priorities are told until they have worked, too: what this host downloads meanwhile comes over its preferred uplink only.
func TestAnnouncedAddresses(t *testing.T) {
	w := withUplinksOf(t, testbed.BackendVeth, "\n[[policy]]\nuse = \"fullmesh\"\nports = [8000]\nannounce = true\n"+
		"\n[[policy]]\nuse = \"backup\"\nports = [80]\nuplinks = [\"MOBILE\", \"FIRST\"]\n")
	second, _ := w.host(alice).AddrOn(mobile)
	w.run(mallory, "ip", "mptcp", "limits", "set", "add_addr_accepted", "4", "subflows", "4")
	w.loseAcks()
	w.host(alice).Command(w.life(), program, "run", "--", "socat", "TCP4-LISTEN:8000,fork,reuseaddr", "EXEC:cat").Start()
	w.listens(alice, 8000)
	const downloads = 2
	for range downloads {
		w.curl(w.url())
	}
	const connections = 8
	for range connections { // that say something now and then
		w.host(mallory).Command(w.life(), program, "run", "--", "bash", "-c",
			fmt.Sprintf("exec 3<>/dev/tcp/%v/8000; while echo x >&3 && read -u 3; do sleep 0.5; done", w.addr4(alice))).Start()
	}
	w.eventually("all connections have a subflow to the second address", func() error {
		joined := strings.Count(w.run(mallory, "ss", "-Htn", "state", "established", "dst", second.String()), "\n")
		if joined < connections {
			return fmt.Errorf("%d of %d have", joined, connections)
		}
		return nil
	})
	w.eventually("the server has heard of the priorities of all downloads", w.comeOver("uplink", downloads))
	dev := w.host(alice).Interface(mobile)
	w.run(alice, "ip", "-4", "addr", "flush", "dev", dev)
	w.eventually("no connection has a subflow to the lost address", func() error {
		if left := strings.Count(w.run(mallory, "ss", "-Htn", "state", "established", "dst", second.String()), "\n"); left > 0 {
			return fmt.Errorf("%d of %d have", left, connections)
		}
		return nil
	})
	own := w.run(mallory, "ss", "-Htn", "state", "established", "dst", w.addr4(alice).String())
	if n := strings.Count(own, "\n"); n != connections {
		t.Errorf("%d subflows to the address that stays, not %d:\n%s", n, connections, own)
	}
	w.someAcksWereLost()
}

// A client loses the address of its second uplink, although 30 % of the acknowledgements without data are lost in both
// directions. It repeats its REMOVE_ADDR, so the server ends nearly all of eight subflows from there, which would stay for a
// quarter of an hour otherwise. All four copies are lost for one connection in 120.
func TestWithdrawnAddress(t *testing.T) {
	w := withUplinks(t, "\n[[policy]]\nuse = \"fullmesh\"\nports = [8000]\n")
	second, _ := w.host(alice).AddrOn(mobile)
	w.host(server).Command(w.life(), program, "run", "--", "socat", "TCP4-LISTEN:8000,fork,reuseaddr", "EXEC:cat").Start()
	w.listens(server, 8000)
	const connections, nearlyAll = 8, 6
	for range connections { // that say something now and then
		w.host(alice).Command(w.life(), program, "run", "--", "bash", "-c",
			fmt.Sprintf("exec 3<>/dev/tcp/%v/8000; while echo x >&3 && read -u 3; do sleep 0.5; done", w.addr4(server))).Start()
	}
	fromSecond := func() int {
		return strings.Count(w.run(server, "ss", "-Htn", "state", "established", "dst", second.String()), "\n")
	}
	w.eventually("all connections have a second subflow", func() error {
		n := fromSecond()
		return holds(n == connections, "%d of %d have", n, connections)
	})
	w.loseAcks() // earlier, a connection might get no second subflow
	heard := func() (n int) {
		line := w.run(server, "nstat", "-asz", "MPTcpExtRmAddr")
		if _, err := fmt.Sscan(line[strings.LastIndex(line, "MPTcpExtRmAddr")+len("MPTcpExtRmAddr"):], &n); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		return n
	}
	before := heard()
	w.run(alice, "ip", "-4", "addr", "flush", "dev", w.host(alice).Interface(mobile))
	w.eventually("the server has heard more often of the lost address than there are connections", func() error {
		n := heard() - before
		return holds(n > connections, "%d times", n)
	})
	w.eventually("nearly all subflows from the lost address have ended", func() error {
		left := fromSecond()
		return holds(left <= connections-nearlyAll, "%d of %d are left", left, connections)
	})
	w.someAcksWereLost()
}

// loseAcks has the router lose 30 % of the acknowledgements without data, in both directions.
func (w *world) loseAcks() {
	w.Helper()
	w.run(router, "nft", `table inet lossy {
		chain forward {
			type filter hook forward priority 0
			tcp flags & (syn|fin|rst|ack) == ack meta length < 100 numgen random mod 100 < 30 counter drop
		}
	}`)
}

// someAcksWereLost checks that loseAcks has lost something.
func (w *world) someAcksWereLost() {
	w.Helper()
	if text := w.run(router, "nft", "list", "table", "inet", "lossy"); strings.Contains(text, "packets 0 ") {
		w.Errorf("nothing was lost: %s", text)
	}
}

// comeOver returns a condition: of each of so many downloads by alice from port 80, much has come over a kind of subflows without
// anything over another one. Later, losses may have the server resend data elsewhere.
func (w *world) comeOver(kind string, downloads int) func() error {
	const much = 100e3
	type come struct{ wanted, others, since uint64 }
	seen, met := make(map[string]come), make(map[string]bool)
	return func() error {
		for _, c := range w.mustStatus(alice).Client.Connections {
			if c.Remote.Port() != 80 {
				continue
			}
			now := come{since: seen[c.Token].since}
			for _, s := range c.Subflows {
				if s.Kind == kind {
					now.wanted += s.BytesReceived
				} else {
					now.others += s.BytesReceived
				}
			}
			if now.others != seen[c.Token].others {
				now.since = now.wanted
			}
			seen[c.Token] = now
			met[c.Token] = met[c.Token] || now.wanted >= now.since+much
		}
		n := 0
		for _, is := range met {
			if is {
				n++
			}
		}
		return holds(n == downloads, "%d of %d: %+v", n, downloads, seen)
	}
}
