package inband

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/bpf/tcfilter/tcfiltertest"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

func checkState(t testing.TB, ns *netnstest.NS, when string, want ...string) {
	t.Helper()
	ns.Must(t, func() error {
		if got := tcfiltertest.Describe(t); got != strings.Join(want, "\n") {
			t.Errorf("%s:\n%s\nwant:\n%s", when, got, strings.Join(want, "\n"))
		}
		return nil
	})
}

func TestFiltersAndTheirQdisc(t *testing.T) {
	ns := netnstest.New(t)
	netnstest.Veth(t, netnstest.End{NS: ns, Name: "a"}, netnstest.End{NS: ns, Name: "b"})
	a := indexOf(t, ns, "a")
	s := openSender(t, ns, SenderConfig{})
	var r *Receiver
	open := func() {
		ns.Must(t, func() (err error) {
			r, err = OpenReceiver(testMask)
			return err
		})
	}
	attach := func(attach func([]int) error, interfaces ...int) {
		t.Helper()
		for range 2 {
			if err := attach(interfaces); err != nil {
				t.Fatal(err)
			}
		}
	}
	open()
	attach(s.Attach, a)
	checkState(t, ns, "sender", "a clsact", "a egress dcol-inband-send+qdisc")
	attach(r.Attach, a)
	both := []string{"a clsact", "a egress dcol-inband-send+qdisc", "a ingress dcol-inband-receive+qdisc"}
	checkState(t, ns, "both", both...)
	attach(s.Attach)
	checkState(t, ns, "receiver", "a clsact", "a ingress dcol-inband-receive+qdisc")
	attach(s.Attach, a)
	checkState(t, ns, "both again", both...)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	checkState(t, ns, "the receiver's process is gone", both...)
	open()
	attach(r.Attach, a)
	checkState(t, ns, "another has come", both...)
	attach(r.Attach)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	checkState(t, ns, "without receiver", "a clsact", "a egress dcol-inband-send+qdisc")
	ns.Must(t, CleanUp)
	checkState(t, ns, "cleaned up")
	ns.Must(t, CleanUp)
}

func TestCleanUpKeepsWhatOthersHave(t *testing.T) {
	ns := netnstest.New(t)
	netnstest.Veth(t, netnstest.End{NS: ns, Name: "a"}, netnstest.End{NS: ns, Name: "b"})
	netnstest.Veth(t, netnstest.End{NS: ns, Name: "c"}, netnstest.End{NS: ns, Name: "d"})
	// a: a qdisc of theirs; b: of ours, with a filter of theirs; c: of theirs with one.
	ns.Output(t, "tc", "qdisc", "add", "dev", "a", "clsact")
	ns.Output(t, "tc", "qdisc", "add", "dev", "c", "clsact")
	s := openSender(t, ns, SenderConfig{})
	attach := func() {
		if err := s.Attach([]int{indexOf(t, ns, "a"), indexOf(t, ns, "b"), indexOf(t, ns, "c"), indexOf(t, ns, "d")}); err != nil {
			t.Fatal(err)
		}
	}
	attach()
	for _, place := range [][2]string{{"b", "ingress"}, {"c", "egress"}} {
		ns.Output(t, "tc", "filter", "add", "dev", place[0], place[1], "protocol", "ip", "u32", "match", "u32", "0", "0", "classid", "1:1")
	}
	theirs := func() []string {
		return []string{"a clsact", "b clsact", "b ingress u32", "c clsact", "c egress u32"}
	}
	ns.Must(t, func() error {
		if got := tcfiltertest.Describe(t); !strings.Contains(got, "b egress dcol-inband-send+qdisc") || !strings.Contains(got, "c egress dcol-inband-send\n") {
			t.Errorf("before: %s", got)
		}
		return nil
	})
	ns.Must(t, CleanUp)
	// u32 shows its tables as filters too.
	ns.Must(t, func() error {
		if got := slices.Compact(strings.Split(tcfiltertest.Describe(t), "\n")); !slices.Equal(got, theirs()) {
			t.Errorf("cleaned up:\n%v\nwant:\n%v", got, theirs())
		}
		return nil
	})
}

// An ingress qdisc takes the place of clsact: enough for the receiver only.
func TestIngressQdisc(t *testing.T) {
	ns := netnstest.New(t)
	netnstest.Veth(t, netnstest.End{NS: ns, Name: "a"}, netnstest.End{NS: ns, Name: "b"})
	ns.Output(t, "tc", "qdisc", "add", "dev", "a", "ingress")
	interfaces := []int{indexOf(t, ns, "a"), indexOf(t, ns, "b")}
	var wrong *InterfaceError
	if err := openSender(t, ns, SenderConfig{}).Attach(interfaces); !errors.As(err, &wrong) || wrong.Name != "a" || wrong.Fix == "" {
		t.Errorf("sender: %v", err)
	}
	var r *Receiver
	ns.Must(t, func() (err error) {
		r, err = OpenReceiver(testMask)
		return err
	})
	defer r.Close()
	if err := r.Attach(interfaces); err != nil {
		t.Errorf("receiver: %v", err)
	}
	checkState(t, ns, "both", "a ingress", "a ingress dcol-inband-receive", "b clsact",
		"b egress dcol-inband-send+qdisc", "b ingress dcol-inband-receive+qdisc")
	ns.Must(t, CleanUp)
	checkState(t, ns, "cleaned up", "a ingress")
}

// A process that comes after another goes on with its keys.
func TestAdoption(t *testing.T) {
	ns := netnstest.New(t)
	open := func() (r *Receiver) {
		ns.Must(t, func() (err error) {
			r, err = OpenReceiver(testMask)
			return err
		})
		return r
	}
	slot := Slot{Key: memberKey, Mark: memberMark, ClientPort: true, Expires: inAnHour()}
	first := open()
	set(t, first, clientPort.Addr(), slot)
	if err := first.Attach([]int{1}); err != nil {
		t.Fatal(err)
	}
	frame := authentic(memberKey, true, 1).ethernet()
	run(t, first.objects.ReceiveEthernet, frame, 0)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}

	second := open()
	defer second.Close()
	if got, err := second.Addresses(); err != nil || len(got) != 1 || got[0] != clientPort.Addr() {
		t.Errorf("addresses %v, %v", got, err)
	}
	slots, err := second.Slots(clientPort.Addr())
	if err != nil || len(slots) != 1 || slots[0].Expires.Sub(slot.Expires).Abs() > time.Minute {
		t.Fatalf("keys %+v, %v, want %+v", slots, err, slot)
	}
	if slots[0].Expires = slot.Expires; slots[0] != slot {
		t.Errorf("key %+v, want %+v", slots[0], slot)
	}
	if slots, err := second.Slots(netip.MustParseAddr("192.0.2.99")); err != nil || len(slots) != 0 {
		t.Errorf("keys of an address that has none: %+v, %v", slots, err)
	}
	if _, mark := run(t, second.objects.ReceiveEthernet, frame, 0); mark != 0 {
		t.Error("forgot what had been accepted")
	}
	if _, mark := run(t, second.objects.ReceiveEthernet, authentic(memberKey, true, 2).ethernet(), 0); mark != memberMark {
		t.Errorf("mark %#x under the key of the first process", mark)
	}
	if got, want := counters(t, second), (Counters{Accepted: 2, Replayed: 1}); got != want {
		t.Errorf("counters %+v, want %+v", got, want)
	}
	ns.Must(t, CleanUp)
	third := open()
	defer third.Close()
	if got, err := third.Addresses(); err != nil || len(got) != 0 {
		t.Errorf("after CleanUp: addresses %v, %v", got, err)
	}
}
