package tcfilter_test

import (
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/detour-collective/dcol/internal/kernel/bpf/forward"
	"github.com/detour-collective/dcol/internal/kernel/bpf/inband"
	"github.com/detour-collective/dcol/internal/kernel/bpf/tcfilter/tcfiltertest"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// Two programs of ours on one interface share the qdisc that the first one made; it goes with the
// last, whichever that is.
func TestSharedQdisc(t *testing.T) {
	ns := netnstest.New(t)
	netnstest.Veth(t, netnstest.End{NS: ns, Name: "a"}, netnstest.End{NS: ns, Name: "b"})
	var (
		receiver  *inband.Receiver
		forwarder *forward.Forwarder
		index     int
	)
	ns.Must(t, func() (err error) {
		if receiver, err = inband.OpenReceiver(^uint32(0)); err != nil {
			return err
		}
		if forwarder, err = forward.Open(); err != nil {
			return err
		}
		link, err := netlink.LinkByName("a")
		if err == nil {
			index = link.Attrs().Index
		}
		return err
	})
	defer receiver.Close()
	defer forwarder.Close()
	attach := map[string]func([]int) error{"receive": receiver.Attach, "forward": forwarder.Attach}
	cleanUp := map[string]func() error{"receive": inband.CleanUp, "forward": forward.CleanUp}
	names := map[string]string{"receive": "dcol-inband-receive+qdisc", "forward": "dcol-forward+qdisc"}
	check := func(when string, there ...string) {
		t.Helper()
		var want []string
		if len(there) > 0 {
			want = append(want, "a clsact")
		}
		for _, name := range there {
			want = append(want, "a ingress "+names[name])
		}
		ns.Must(t, func() error {
			if got := tcfiltertest.Describe(t); got != strings.Join(want, "\n") {
				t.Errorf("%s:\n%s\nwant:\n%s", when, got, strings.Join(want, "\n"))
			}
			return nil
		})
	}
	for _, order := range [][2]string{{"receive", "forward"}, {"forward", "receive"}} {
		for _, leaving := range [][2]string{{"receive", "forward"}, {"forward", "receive"}} {
			for _, name := range order {
				if err := attach[name]([]int{index}); err != nil {
					t.Fatal(err)
				}
			}
			check("both", "forward", "receive")
			if err := attach[leaving[0]](nil); err != nil {
				t.Fatal(err)
			}
			check("one", leaving[1])
			ns.Must(t, cleanUp[leaving[1]])
			check("none")
		}
	}
}
