package inband

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
	"github.com/detour-collective/dcol/internal/packet"
)

const (
	memberMark = 0xdc010007
	// testMask has the bits of memberMark, and leaves some to others.
	testMask = 0xff0100ff
)

var memberKey = Key{7, 7, 7, 15: 1}

func openReceiver(t testing.TB) *Receiver {
	t.Helper()
	var r *Receiver
	netnstest.New(t).Must(t, func() (err error) {
		r, err = OpenReceiver(testMask)
		return err
	})
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func inAnHour() time.Time { return time.Now().Add(time.Hour) }

func set(t testing.TB, r *Receiver, client netip.Addr, slots ...Slot) {
	t.Helper()
	if err := r.Set(client, slots); err != nil {
		t.Fatal(err)
	}
}

// authentic is the SYN of a member's join.
func authentic(key Key, coversPort bool, tsval uint32) sample {
	p := syn(nil)
	j := Join{Local: p.from, Remote: p.to, Server: serverAddr, Auth: &Auth{Key: key, Client: p.from.Addr(), ClientPort: coversPort}}
	p.options = joinOptions(tsval, Authenticator(j, p.seq, tsval), optionDetour(serverAddr))
	return p
}

func TestReceive(t *testing.T) {
	const tsval = 1000
	good := func(change func(*sample)) sample {
		p := authentic(memberKey, true, tsval)
		if change != nil {
			change(&p)
		}
		return p
	}
	// instead has other options, with the authenticator of the good SYN.
	instead := func(options func(tsecr uint32) []byte) sample {
		p := good(nil)
		p.options = options(binary.BigEndian.Uint32(p.options[12:]))
		return p
	}
	detour := optionDetour(serverAddr)
	accepted, malformed := Counters{Accepted: 1}, Counters{Malformed: 1}
	bad, unknown := Counters{BadAuthenticator: 1}, Counters{UnknownAddress: 1}
	for _, c := range []struct {
		name   string
		packet sample
		want   Counters
	}{
		{"as the kernel sends it", good(nil), accepted},
		{"IP options", good(func(p *sample) { p.ipOptions = []byte{148, 4, 0, 0} }), accepted},
		{"ECN is asked for", good(func(p *sample) { p.flags |= packet.ECE }), accepted},
		{"data in the SYN", good(func(p *sample) { p.payload = []byte("hello") }), accepted},
		{"timestamps at an odd place", instead(func(e uint32) []byte {
			return append(append([]byte{1}, optionTimestamps(tsval, e)...), detour...)
		}), accepted},
		{"timestamps after the option", instead(func(e uint32) []byte {
			return append(bytes.Clone(detour), optionTimestamps(tsval, e)...)
		}), accepted},
		{"another experiment beside", instead(func(e uint32) []byte {
			return append(append([]byte{254, 6, 0xf9, 0x89, 1, 2}, optionTimestamps(tsval, e)...), detour...)
		}), accepted},
		{"forty single bytes before the end", instead(func(uint32) []byte {
			return bytes.Repeat([]byte{1}, 40)
		}), Counters{}},

		{"no option", instead(func(e uint32) []byte { return joinOptions(tsval, e, nil) }), Counters{}},
		{"no options", instead(func(uint32) []byte { return nil }), Counters{}},
		{"another experiment", instead(func(e uint32) []byte {
			return joinOptions(tsval, e, []byte{254, 8, 0xdc, 0x02, 1, 2, 3, 4})
		}), Counters{}},
		{"no room for an experiment's id", instead(func(e uint32) []byte {
			return joinOptions(tsval, e, []byte{254, 3, 0xdc, 254, 2, 1, 1, 1})
		}), Counters{}},
		{"option behind the end of the list", instead(func(e uint32) []byte {
			return append(append(optionTimestamps(tsval, e), 0, 0), detour...)
		}), Counters{}},
		{"ACK set", good(func(p *sample) { p.flags |= packet.ACK }), Counters{}},
		{"RST set", good(func(p *sample) { p.flags |= packet.RST }), Counters{}},
		{"no SYN", good(func(p *sample) { p.flags = packet.ACK }), Counters{}},
		{"UDP", good(func(p *sample) { p.protocol = 17 }), Counters{}},
		{"first fragment", good(func(p *sample) { p.fragment = 0x2000 }), Counters{}},
		{"later fragment", good(func(p *sample) { p.fragment = 10 }), Counters{}},
		{"cut off in the options", good(func(p *sample) { p.truncateTo = 20 + 20 + 36 }), Counters{}},
		{"cut off in the TCP header", good(func(p *sample) { p.truncateTo = 20 + 15 }), Counters{}},
		{"options beyond what the IP header counts", good(func(p *sample) { p.totalLess = 4 }), Counters{}},

		{"doubled", instead(func(e uint32) []byte {
			return append(append(optionTimestamps(tsval, e), detour...), detour...)
		}), malformed},
		{"too short", instead(func(e uint32) []byte {
			return append(optionTimestamps(tsval, e), 254, 6, 0xdc, 1, 10, 0)
		}), malformed},
		{"too long", instead(func(e uint32) []byte {
			return append(append(optionTimestamps(tsval, e), 254, 10, 0xdc, 1), make([]byte, 6)...)
		}), malformed},
		{"truncated", instead(func(e uint32) []byte {
			return append(append(optionTimestamps(tsval, e), 1, 1), 254, 8, 0xdc, 1)
		}), malformed},
		{"then an option that does not end", instead(func(e uint32) []byte {
			return append(append(optionTimestamps(tsval, e), detour...), 30, 12)
		}), malformed},
		{"then an option of no length", instead(func(e uint32) []byte {
			return append(append(optionTimestamps(tsval, e), detour...), 30, 0)
		}), malformed},
		{"timestamps twice", instead(func(e uint32) []byte {
			return append(append(optionTimestamps(tsval, e), optionTimestamps(tsval, e)...), detour...)
		}), malformed},

		{"a stranger", good(func(p *sample) { p.from = netip.MustParseAddrPort("8.0.9.9:40000") }), unknown},
		{"no timestamps", instead(func(uint32) []byte { return detour }), bad},
		{"timestamps of a wrong length", instead(func(e uint32) []byte {
			return append(append([]byte{8, 12}, optionTimestamps(tsval, e)[:10]...), detour...)
		}), bad},
		{"another authenticator", instead(func(e uint32) []byte { return joinOptions(tsval, e+1, detour) }), bad},
		{"another server", instead(func(e uint32) []byte {
			return joinOptions(tsval, e, optionDetour(netip.MustParseAddr("10.0.3.3")))
		}), bad},
		{"another port of the client", good(func(p *sample) { p.from = netip.AddrPortFrom(p.from.Addr(), 40001) }), bad},
		{"another port of the server", good(func(p *sample) { p.to = netip.AddrPortFrom(p.to.Addr(), 80) }), bad},
		{"another sequence number", good(func(p *sample) { p.seq++ }), bad},
		{"another TSval", instead(func(e uint32) []byte { return joinOptions(tsval+1, e, detour) }), bad},
		{"another key", authentic(Key{1}, true, tsval), bad},
		{"without the client's port", authentic(memberKey, false, tsval), bad},
	} {
		for _, kind := range []string{"Ethernet", "headerless"} {
			t.Run(c.name+"/"+kind, func(t *testing.T) {
				r := openReceiver(t)
				set(t, r, clientPort.Addr(), Slot{Key: memberKey, Mark: memberMark, ClientPort: true, Expires: inAnHour()})
				program, before, link := r.objects.ReceiveEthernet, c.packet.ethernet(), 14
				if kind == "headerless" {
					program, before, link = r.objects.ReceiveHeaderless, c.packet.headerless(), 0
				}
				after, mark := run(t, program, before, 0)
				got := counters(t, r)
				if got != c.want {
					t.Errorf("counters %+v, want %+v", got, c.want)
				}
				checkAfter(t, before[link:], after[link:], mark, got.Accepted == 1)
			})
		}
	}
}

// checkAfter holds of every packet: it is marked and its TSecr cleared, or it is
// as it came.
func checkAfter(t *testing.T, before, after []byte, mark uint32, accepted bool) {
	t.Helper()
	if !accepted {
		if mark != 0 || !bytes.Equal(before, after) {
			t.Errorf("not accepted, but mark %#x and\n%x became\n%x", mark, before, after)
		}
		return
	}
	if mark != memberMark {
		t.Errorf("mark %#x", mark)
	}
	if !checksumHolds(after) {
		t.Error("the checksum is wrong")
	}
	want := bytes.Clone(before)
	tcp := want[int(want[0]&15)*4:]
	at := parse(tcp[20:int(tcp[12]>>4)*4]).tsvalAt + 20 + 4
	copy(tcp[at:], []byte{0, 0, 0, 0})
	copy(tcp[16:18], after[len(want)-len(tcp)+16:])
	if !bytes.Equal(after, want) {
		t.Errorf("more has changed than the TSecr:\n%x became\n%x", before, after)
	}
}

// TestReceiveAnyOptions compares the program with the model over random options,
// those of joins among them, whole and damaged.
func TestReceiveAnyOptions(t *testing.T) {
	r := openReceiver(t)
	set(t, r, clientPort.Addr(), Slot{Key: memberKey, Mark: memberMark, ClientPort: true, Expires: inAnHour()})
	option := rapid.OneOf(
		rapid.Just([]byte{1}),
		rapid.Just(optionDetour(serverAddr)),
		rapid.Just([]byte{254, 8, 0xdc, 0x01}),
		rapid.Just([]byte{254, 6, 0xf9, 0x89, 1, 2}),
		rapid.Just([]byte{4, 2}),
		rapid.Custom(func(t *rapid.T) []byte { return optionTimestamps(rapid.Uint32().Draw(t, "TSval"), 0) }),
		rapid.SliceOfN(rapid.Byte(), 0, 12),
	)
	seen := map[[2]uint32]bool{}
	rapid.Check(t, func(rt *rapid.T) {
		p := syn(bytes.Join(rapid.SliceOfN(option, 0, 8).Draw(rt, "options"), nil))
		p.options = p.options[:min(len(p.options), 40)]
		p.seq = rapid.Uint32().Draw(rt, "sequence number")
		for len(p.options)%4 != 0 {
			p.options = append(p.options, 0)
		}
		found := parse(p.options)
		want := Counters{}
		switch {
		case found.detours == 0:
		case found.detours > 1 || found.timestamps > 1 || found.broken:
			want.Malformed = 1
		case found.timestamps == 0:
			want.BadAuthenticator = 1
		default:
			tsval := binary.BigEndian.Uint32(p.options[found.tsvalAt:])
			j := Join{Local: p.from, Remote: p.to, Server: found.server,
				Auth: &Auth{Key: memberKey, Client: p.from.Addr(), ClientPort: true}}
			binary.BigEndian.PutUint32(p.options[found.tsvalAt+4:], Authenticator(j, p.seq, tsval))
			if want.Accepted = 1; seen[[2]uint32{p.seq, tsval}] {
				want = Counters{Replayed: 1}
			}
			seen[[2]uint32{p.seq, tsval}] = true
		}
		before := counters(t, r)
		frame := p.ethernet()
		after, mark := run(t, r.objects.ReceiveEthernet, frame, 0)
		got := since(before, counters(t, r))
		if got != want {
			rt.Fatalf("counters %+v, want %+v of options %x", got, want, p.options)
		}
		checkAfter(t, frame[14:], after[14:], mark, got.Accepted == 1)
	})
}

func TestKeysOfAnAddress(t *testing.T) {
	r := openReceiver(t)
	key := func(i int) Key { return Key{byte(i), 15: 99} }
	var slots []Slot
	for i := range MaxSlots {
		slots = append(slots, Slot{Key: key(i), Mark: 0xdc010000 + uint32(i), ClientPort: i%2 == 0, Expires: inAnHour()})
	}
	set(t, r, clientPort.Addr(), slots...)
	tsval := uint32(0)
	try := func(i int, coversPort bool) uint32 {
		tsval++
		_, mark := run(t, r.objects.ReceiveEthernet, authentic(key(i), coversPort, tsval).ethernet(), 0)
		return mark
	}
	for i, s := range slots {
		if got := try(i, s.ClientPort); got != s.Mark {
			t.Errorf("key %d: mark %#x", i, got)
		}
		if got := try(i, !s.ClientPort); got != 0 {
			t.Errorf("key %d, which is not for SYNs of this kind: mark %#x", i, got)
		}
	}
	// A renewal: key 0 is older and over, key 1 is older and still good.
	set(t, r, clientPort.Addr(),
		Slot{Key: key(2), Mark: 3, Expires: inAnHour()},
		Slot{Key: key(0), Mark: 1, Expires: time.Now().Add(-time.Second)},
		Slot{Key: key(1), Mark: 2, Expires: inAnHour()},
	)
	for i, want := range []uint32{0, 2, 3, 0} {
		if got := try(i, false); got != want {
			t.Errorf("after the renewal, key %d: mark %#x, want %#x", i, got, want)
		}
	}
	if got, err := r.Addresses(); err != nil || len(got) != 1 || got[0] != clientPort.Addr() {
		t.Errorf("addresses %v, %v", got, err)
	}
	for range 2 { // what is not there can be removed too
		set(t, r, clientPort.Addr())
	}
	if got := try(2, false); got != 0 {
		t.Errorf("without keys: mark %#x", got)
	}
	if got, err := r.Addresses(); err != nil || len(got) != 0 {
		t.Errorf("addresses %v, %v", got, err)
	}
	if err := r.Set(clientPort.Addr(), make([]Slot, MaxSlots+1)); err == nil {
		t.Error("took one key too many")
	}
	if err := r.Set(netip.MustParseAddr("2001:db8::1"), slots); err == nil {
		t.Error("took keys of an IPv6 address")
	}
}

func TestReplay(t *testing.T) {
	r := openReceiver(t)
	set(t, r, clientPort.Addr(),
		Slot{Key: memberKey, Mark: memberMark, ClientPort: true, Expires: inAnHour()},
		Slot{Key: Key{2}, Mark: memberMark, Expires: inAnHour()})
	first := authentic(memberKey, true, 1)
	for i, want := range []uint32{memberMark, 0, 0} {
		if _, mark := run(t, r.objects.ReceiveEthernet, first.ethernet(), 0); mark != want {
			t.Errorf("time %d: mark %#x, want %#x", i+1, mark, want)
		}
	}
	retransmitted := authentic(memberKey, true, 2)
	if _, mark := run(t, r.objects.ReceiveEthernet, retransmitted.ethernet(), 0); mark != memberMark {
		t.Errorf("a retransmission: mark %#x", mark)
	}
	// Where the port is not covered, another port is no other SYN; nor is
	// another of the receiver's addresses.
	nat := authentic(Key{2}, false, 3)
	for i, want := range []uint32{memberMark, 0, 0} {
		if _, mark := run(t, r.objects.ReceiveEthernet, nat.ethernet(), 0); mark != want {
			t.Errorf("time %d through a NAT: mark %#x, want %#x", i+1, mark, want)
		}
		nat.from = netip.AddrPortFrom(nat.from.Addr(), nat.from.Port()+1)
		nat.to = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 9, 9, byte(i)}), nat.to.Port())
	}
	if got, want := counters(t, r), (Counters{Accepted: 3, Replayed: 4}); got != want {
		t.Errorf("counters %+v, want %+v", got, want)
	}
}

// A packet that comes by twice, as over a port of a bridge and over the bridge,
// keeps its mark and is counted once.
func TestSeenTwice(t *testing.T) {
	r := openReceiver(t)
	set(t, r, clientPort.Addr(), Slot{Key: memberKey, Mark: memberMark, ClientPort: true, Expires: inAnHour()})
	frame, mark := run(t, r.objects.ReceiveEthernet, authentic(memberKey, true, 1).ethernet(), 0)
	again, mark := run(t, r.objects.ReceiveEthernet, frame, mark)
	if mark != memberMark || !bytes.Equal(frame, again) {
		t.Errorf("mark %#x", mark)
	}
	if got, want := counters(t, r), (Counters{Accepted: 1}); got != want {
		t.Errorf("counters %+v, want %+v", got, want)
	}
}

func TestReceiveIPv6(t *testing.T) {
	r := openReceiver(t)
	set(t, r, clientPort.Addr(), Slot{Key: memberKey, Mark: memberMark, ClientPort: true, Expires: inAnHour()})
	frame := authentic(memberKey, true, 1).ethernet()
	frame[12], frame[13] = 0x86, 0xdd
	if _, mark := run(t, r.objects.ReceiveEthernet, frame, 0); mark != 0 {
		t.Errorf("mark %#x", mark)
	}
}

func counters(t testing.TB, r *Receiver) Counters {
	t.Helper()
	c, err := r.Counters()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func since(before, c Counters) Counters {
	return Counters{
		Accepted:         c.Accepted - before.Accepted,
		Malformed:        c.Malformed - before.Malformed,
		UnknownAddress:   c.UnknownAddress - before.UnknownAddress,
		BadAuthenticator: c.BadAuthenticator - before.BadAuthenticator,
		Replayed:         c.Replayed - before.Replayed,
	}
}

// Other programs have bits of packets' marks, which stay as they are.
func TestForeignMarksStay(t *testing.T) {
	const foreign = 0x0000c200
	r := openReceiver(t)
	set(t, r, authentic(memberKey, true, 1).from.Addr(), Slot{Key: memberKey, Mark: memberMark, ClientPort: true, Expires: inAnHour()})
	if _, mark := run(t, r.objects.ReceiveEthernet, authentic(memberKey, true, 1).ethernet(), foreign); mark != memberMark|foreign {
		t.Errorf("an authentic SYN: mark %#x", mark)
	}
	if _, mark := run(t, r.objects.ReceiveEthernet, authentic(Key{1}, true, 2).ethernet(), foreign); mark != foreign {
		t.Errorf("a forged SYN: mark %#x", mark)
	}
}
