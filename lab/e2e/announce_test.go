package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/lab/testbed"
)

// A host with two uplinks serves clients of the kernel's path manager. Each of eight connections learns of the second address,
// although 30 % of the acknowledgements without data are lost in both directions.
func TestAnnouncedAddresses(t *testing.T) {
	w := withUplinksOf(t, testbed.BackendVeth, "\n[[policy]]\nuse = \"fullmesh\"\nports = [8000]\nannounce = true\n")
	second, _ := w.host(alice).AddrOn(mobile)
	w.run(mallory, "ip", "mptcp", "limits", "set", "add_addr_accepted", "4", "subflows", "4")
	w.run(router, "nft", `table inet lossy {
		chain forward {
			type filter hook forward priority 0
			tcp flags & (syn|fin|rst|ack) == ack meta length < 100 numgen random mod 100 < 30 counter drop
		}
	}`)
	w.host(alice).Command(w.life(), program, "run", "--", "socat", "TCP4-LISTEN:8000,fork,reuseaddr", "EXEC:cat").Start()
	w.eventually("the server listens", func() error {
		if w.run(alice, "ss", "-Htln", "sport = :8000") == "" {
			return fmt.Errorf("nothing listens")
		}
		return nil
	})
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
	if text := w.run(router, "nft", "list", "table", "inet", "lossy"); strings.Contains(text, "packets 0 ") {
		t.Errorf("nothing was lost: %s", text)
	}
}
