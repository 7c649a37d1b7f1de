package inband

import (
	"errors"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// expected is what is known of a join; ok is false if it is not expected.
func (n *internet) expected(t testing.TB, j Join) (join sendJoin, ok bool) {
	t.Helper()
	err := n.sender.objects.Joins.Lookup(tuple(j.Local, j.Remote), &join)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Fatal(err)
	}
	return join, err == nil
}

// A join whose SYNs nobody answers ends with its connection, or when the kernel gives it up. Of neither
// is there an event. It is not expected any more: its ports may be those of another connection later.
func TestJoinGivenUp(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, n *internet, c interface{ Close() error }, token uint32, j Join){
		"with its connection": func(t *testing.T, _ *internet, c interface{ Close() error }, _ uint32, _ Join) {
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
		},
		"by itself": func(t *testing.T, n *internet, _ interface{ Close() error }, token uint32, j Join) {
			if err := n.kernel.DestroySubflow(token, j.Local, j.Remote); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newInternet(t, netnstest.Veth, SenderConfig{})
			n.waypoint.Output(t, "nft", `
table ip deaf {
	chain prerouting {
		type filter hook prerouting priority raw
		meta l4proto tcp drop
	}
}`)
			c, token := n.dial(t, unix.AF_INET)
			j := internetJoin(40000)
			expect(t, n.sender, j)
			if err := n.kernel.CreateSubflow(mptcp.NewSubflow{Token: token, Local: j.Local, LocalID: 1, Remote: j.Remote}); err != nil {
				t.Fatal(err)
			}
			checkSYN(t, n.atRouter.syn(t, 40000, 443), j)
			if join, ok := n.expected(t, j); !ok || !join.Written {
				t.Fatalf("while its SYN is under way: %+v, %v", join, ok)
			}
			end(t, n, c, token, j)
			for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
				if join, ok := n.expected(t, j); !ok {
					break
				} else if time.Now().After(deadline) {
					t.Fatalf("still expected: %+v", join)
				}
			}
		})
	}
}

// Who is outside of the sender's cgroup is not seen: what he leaves has a time limit.
func TestExpectationsEnd(t *testing.T) {
	n := newInternet(t, netnstest.Veth, SenderConfig{})
	_, token := n.dial(t, unix.AF_INET)
	j := internetJoin(40000)
	expect(t, n.sender, j)
	join, ok := n.expected(t, j)
	_, boot, err := clocks()
	if left := time.Duration(join.Expires) - boot; err != nil || !ok || left <= 0 || left > joinLife {
		t.Fatalf("expected for %v, %v, %v", left, ok, err)
	}
	join.Expires = uint64(boot)
	if err := n.sender.objects.Joins.Put(tuple(j.Local, j.Remote), join); err != nil {
		t.Fatal(err)
	}
	if e := n.join(t, token, j); e.Kind != mptcp.SubflowClosed {
		t.Errorf("the join was led on: %v", e)
	}
	checkPlain(t, n.atRouter.syn(t, 40000, 443))
}
