package e2e

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/lab/testbed"
)

// connectionTo is alice's connection to a port.
func (w *world) connectionTo(port uint16) (api.Connection, error) {
	w.Helper()
	for _, c := range w.mustStatus(alice).Client.Connections {
		if c.Remote.Port() == port {
			return c, nil
		}
	}
	return api.Connection{}, fmt.Errorf("alice has no connection to port %d", port)
}

// have waits until alice's connection to a port has exactly these subflows.
func (w *world) have(port uint16, want ...string) {
	w.Helper()
	w.eventually(fmt.Sprintf("subflows %q to port %d", want, port), func() error {
		c, err := w.connectionTo(port)
		var have []string
		for _, s := range c.Subflows {
			have = append(have, s.Kind+" "+string(s.State))
		}
		if err == nil && fmt.Sprint(have) != fmt.Sprint(want) {
			err = fmt.Errorf("it has %q (%s)", have, c.Note)
		}
		return err
	})
}

// Connections have a second subflow not before two seconds have passed, by after or because they are slow, and none if they
// are as fast as below says. A path is a backup when its quota is used up. The preferred path's subflow ends when 80 % of its
// quota are used, if near_quota says so.
func TestPolicyStartsAndQuotas(t *testing.T) {
	w := withUplinks(t, `
[[policy]]
use = "fullmesh"
ports = [81]
after = "2s"

[[policy]]
use = "fullmesh"
ports = [82]
below = "1gbit"

[[policy]]
use = "fullmesh"
ports = [83]
below = "1kbit"

[[policy]]
use = "backup"
ports = [84]
uplinks = ["MOBILE", "FIRST"]
quota = { MOBILE = "4MB" }
near_quota = "0"

[[policy]]
use = "fullmesh"
ports = [85]
quota = { MOBILE = "200kB" }
`)
	url := func(port int) string { return fmt.Sprintf("http://%v:%d/file", w.addr4(server), port) }
	quota := w.curl(url(84))
	w.have(84, "direct backup", "uplink up")
	spent := w.curl(url(85))
	began := time.Now()
	var slow []*transfer
	for port := 81; port <= 83; port++ {
		slow = append(slow, w.curl(url(port)))
	}
	for range 3 { // 4.5 MB
		quota.goesOn()
	}
	w.have(84, "direct up") // at the whole quota, its subflow would stay as a backup
	quota.endsWell()
	for _, port := range []uint16{81, 82} {
		w.have(port, "direct up", "uplink up")
		if took := time.Since(began); took < 2*time.Second {
			t.Errorf("port %d has its second subflow after %v", port, took)
		}
	}
	w.have(83, "direct up")
	spent.goesOn()
	w.have(85, "direct up", "uplink backup")
	w.says(w.try(alice, program, "status"), "the quota of "+w.host(alice).Interface(mobile)+" is used up")
	spent.goesOn()
	for _, x := range slow {
		x.goesOn()
	}
}

// A server refuses a second subflow of its client, which the kernel's path manager opens, for one of two ports. A connection
// without any subflow ends after the inactivity timeout; by default, it would live for a minute.
func TestPolicyRefusesAndInactivity(t *testing.T) {
	const timeout = 3 * time.Second
	w := withUplinksOf(t, testbed.BackendVeth, "\n[[policy]]\nuse = \"fullmesh\"\nports = [8000]\nrefuse_joins = true\n",
		fmt.Sprintf("inactivity_timeout = %q\n", timeout))
	dev := w.host(mallory).Interface(mallory)
	second := netip.MustParseAddr("10.99.0.1")
	w.run(mallory, "ip", "addr", "add", second.String()+"/32", "dev", dev)
	w.run(router, "ip", "route", "add", second.String(), "via", w.addr4(mallory).String())
	w.run(mallory, "ip", "mptcp", "limits", "set", "subflows", "2")
	w.run(mallory, "ip", "mptcp", "endpoint", "add", second.String(), "dev", dev, "subflow")
	for _, port := range []int{8000, 8001} {
		w.host(alice).Command(w.life(), program, "run", "--", "socat", fmt.Sprintf("TCP4-LISTEN:%d,reuseaddr,fork", port), "EXEC:cat").Start()
		w.eventually("the server listens", func() error {
			if w.run(alice, "ss", "-Htln", "sport = :"+strconv.Itoa(port)) == "" {
				return fmt.Errorf("nothing listens")
			}
			return nil
		})
		w.host(mallory).Command(w.life(), program, "run", "--", "bash", "-c",
			fmt.Sprintf("exec 3<>/dev/tcp/%v/%d; while echo x >&3 && read -u 3; do sleep 0.1; done", w.addr4(alice), port)).Start()
		w.eventually("the second subflow has joined", func() error {
			if joins := w.run(alice, "nstat", "-asz", "MPTcpExtMPJoinAckRx"); !strings.Contains(joins, fmt.Sprintf(" %d ", port-7999)) {
				return fmt.Errorf("%s", joins)
			}
			return nil
		})
	}
	from := func(client netip.Addr, port int) (n int) {
		return strings.Count(w.run(alice, "ss", "-Htn", "state", "established", "dst", client.String(), "sport", "=", ":"+strconv.Itoa(port)), "\n")
	}
	w.eventually("only the refused subflow has ended", func() error {
		if refused, kept := from(second, 8000), from(second, 8001); refused != 0 || kept != 1 {
			return fmt.Errorf("%d and %d subflows", refused, kept)
		}
		return nil
	})
	if n := from(w.addr4(mallory), 8000); n != 1 {
		t.Errorf("the refusing server has %d first subflows", n)
	}

	w.waypointUp()
	x := w.curl(w.url())
	w.detoured()
	x.goesOn()
	began := time.Now()
	w.run(router, "nft", fmt.Sprintf(`table inet resetting {
		chain forward {
			type filter hook forward priority 0
			ip saddr %v meta l4proto tcp reject with tcp reset
		}
	}`, w.addr4(alice)))
	x.once.Do(func() { close(x.hurry) }) // curl first reads what has arrived
	w.within(30*time.Second, "the connection ends", func() error {
		select {
		case <-x.ended:
			return nil
		default:
			return fmt.Errorf("it lives")
		}
	})
	if took := time.Since(began); x.err == nil || took < timeout {
		t.Errorf("curl ended after %v: %v", took, x.err)
	}
}
