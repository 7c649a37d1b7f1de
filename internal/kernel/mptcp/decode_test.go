package mptcp

import (
	"encoding/binary"
	"math"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

const testFamily = 30

// attr is one netlink attribute, padded.
func attr(typ uint16, payload ...byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(attrHeaderLen+len(payload)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, payload...)
	return append(b, make([]byte, align4(len(b))-len(b))...)
}

func attr16(typ, v uint16) []byte {
	return attr(typ, binary.NativeEndian.AppendUint16(nil, v)...)
}

func attr32(typ uint16, v uint32) []byte {
	return attr(typ, binary.NativeEndian.AppendUint32(nil, v)...)
}

func attrPort(typ, v uint16) []byte {
	return attr(typ, binary.BigEndian.AppendUint16(nil, v)...)
}

func attrAddr(typ uint16, a string) []byte {
	return attr(typ, netip.MustParseAddr(a).AsSlice()...)
}

// datagram is one netlink message.
func datagram(typ uint16, payload []byte) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(netlinkHeaderLen+len(payload)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, make([]byte, netlinkHeaderLen-len(b))...)
	return append(b, payload...)
}

func eventMessage(kind EventKind, attrs ...[]byte) []byte {
	return datagram(testFamily, append([]byte{byte(kind), 1, 0, 0}, slices.Concat(attrs...)...))
}

func TestDecodeEvents(t *testing.T) {
	for _, tc := range []struct {
		name string
		msg  []byte
		want string
	}{
		{
			"IPv4 client",
			eventMessage(Established, attr32(eventToken, 0xabc), attr16(2, unix.AF_INET),
				attrAddr(eventLocal4, "10.0.0.2"), attrAddr(eventRemote4, "198.51.100.1"),
				attrPort(eventLocalPort, 40000), attrPort(eventRemotePort, 443), attr(eventServerSide, 0)),
			"ESTABLISHED token=00000abc local=10.0.0.2:40000 remote=198.51.100.1:443",
		}, {
			"server side by attribute, before 6.18",
			eventMessage(Created, attr32(eventToken, 1), attr(eventServerSide, 1)),
			"CREATED token=00000001 server-side",
		}, {
			"server side by flag",
			eventMessage(Created, attr32(eventToken, 1), attr16(eventFlags, eventFlagServerSide|eventFlagDenyJoinID0)),
			"CREATED token=00000001 server-side deny-join-initial",
		}, {
			"IPv6",
			eventMessage(SubflowEstablished, attr32(eventToken, 1), attr(eventLocalID, 3), attr(eventRemoteID, 4),
				attrAddr(eventLocal6, "2001:db8::2"), attrAddr(eventRemote6, "2001:db8::7"),
				attrPort(eventLocalPort, 1), attrPort(eventRemotePort, 2), attr(eventBackup, 1), attr32(eventIfIndex, 9)),
			"SUB_ESTABLISHED token=00000001 local=[2001:db8::2]:1 remote=[2001:db8::7]:2 ids=3/4 backup ifindex=9",
		}, {
			"mapped addresses",
			eventMessage(SubflowClosed, attr32(eventToken, 1),
				attrAddr(eventLocal6, "::ffff:10.0.0.2"), attrAddr(eventRemote6, "::ffff:192.0.2.7"),
				attr(eventError, byte(syscall.ECONNREFUSED)), attr32(eventResetReason, 2), attr32(eventResetFlags, 1)),
			`SUB_CLOSED token=00000001 local=10.0.0.2:0 remote=192.0.2.7:0 ids=0/0 err="connection refused" reset=2/0x1`,
		}, {
			"announced",
			eventMessage(Announced, attr32(eventToken, 1), attr(eventRemoteID, 5),
				attrAddr(eventRemote4, "192.0.2.1"), attrPort(eventRemotePort, 8080)),
			"ANNOUNCED token=00000001 remote=192.0.2.1:8080 id=5",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			err := decodeEvents(tc.msg, testFamily, func(ev Event) { got = append(got, ev.String()) })
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{tc.want}, got); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDecodeTimeout(t *testing.T) {
	err := decodeEvents(eventMessage(Removed, attr32(eventTimeout, 1500)), testFamily, func(ev Event) {
		if ev.Timeout != 1500*time.Millisecond {
			t.Errorf("timeout %v, want 1.5s", ev.Timeout)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestDecodePassesOverTheUnknown(t *testing.T) {
	msgs := slices.Concat(
		datagram(testFamily+1, []byte{byte(Closed), 1, 0, 0}),
		eventMessage(99, attr32(eventToken, 1)),
		eventMessage(Closed, attr32(1000, 7), attr32(eventToken, 2)),
	)
	var got []Event
	if err := decodeEvents(msgs, testFamily, func(ev Event) { got = append(got, ev) }); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Event{{Kind: Closed, Token: 2}}, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestDecodeRefusesTheTruncated(t *testing.T) {
	whole := eventMessage(Closed, attr32(eventToken, 2))
	for n := 1; n < len(whole); n++ {
		if err := decodeEvents(whole[:n], testFamily, func(Event) {}); err == nil {
			t.Errorf("%d of %d bytes were taken for whole", n, len(whole))
		}
	}
	binary.NativeEndian.PutUint16(whole[netlinkHeaderLen+genlHeaderLen:], 9)
	if err := decodeEvents(whole, testFamily, func(Event) {}); err == nil {
		t.Error("an attribute longer than its message was taken")
	}
}

func TestDecodeEventsMakesNoGarbage(t *testing.T) {
	msg := eventMessage(SubflowEstablished, attr32(eventToken, 1),
		attrAddr(eventLocal4, "10.0.0.2"), attrAddr(eventRemote4, "192.0.2.7"))
	yield := func(Event) {}
	allocs := testing.AllocsPerRun(100, func() {
		if err := decodeEvents(msg, testFamily, yield); err != nil {
			t.Fatal(err)
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations per event", allocs)
	}
}

// socketMessage is struct inet_diag_msg with attributes.
func socketMessage(state TCPState, local, remote netip.AddrPort, attrs ...[]byte) []byte {
	b := make([]byte, diagMessageLen)
	b[0], b[1] = familyOf(local.Addr()), byte(state)
	req := diagRequest{local: local, remote: remote}.encode()
	copy(b[4:4+diagSockIDLen], req[8:])
	b[diagMessageLen-4] = 1 // inode
	return append(b, slices.Concat(attrs...)...)
}

var (
	testLocal  = netip.MustParseAddrPort("10.0.0.2:40001")
	testRemote = netip.MustParseAddrPort("192.0.2.7:30001")
)

func ulp(attrs ...[]byte) []byte {
	return attr(diagAttrULPInfo, slices.Concat(attr(1, 'm', 'p', 't', 'c', 'p', 0), attr(ulpAttrMPTCP, slices.Concat(attrs...)...))...)
}

func TestDecodeSubflow(t *testing.T) {
	info := unix.TCPInfo{
		Rtt: 20_500, Rttvar: 300, Min_rtt: math.MaxUint32, Rto: 204_000, Snd_cwnd: 10, Snd_mss: 1448,
		Options:     1 | 8, // TCPI_OPT_TIMESTAMPS, TCPI_OPT_ECN
		Bytes_acked: 1 << 40, Delivery_rate: 5, Last_data_recv: 7, Busy_time: 9,
		Total_retrans: 4, Dsack_dups: 3, Rcv_ooopack: 2,
	}
	raw := unsafe.Slice((*byte)(unsafe.Pointer(&info)), unsafe.Sizeof(info))
	raw = slices.Clone(raw)
	raw[7] = 1 // delivery rate limited by the application
	msg := socketMessage(StateEstablished, testLocal, testRemote, attr(diagAttrInfo, raw...), ulp(
		attr32(subflowAttrTokenLocal, 0xa), attr32(subflowAttrTokenRemote, 0xb),
		attr32(subflowAttrFlags, flagJoinLocal|flagJoinRemote|flagBackupLocal|flagFullyEstablished),
		attr(subflowAttrIDLocal, 1), attr(subflowAttrIDRemote, 2)))
	want := Subflow{
		Token: 0xa, RemoteToken: 0xb, Local: testLocal, Remote: testRemote, LocalID: 1, RemoteID: 2,
		State: StateEstablished, BackupLocal: true, FullyEstablished: true,
		Metrics: Metrics{
			RTT: 20500 * time.Microsecond, RTTVar: 300 * time.Microsecond, RTO: 204 * time.Millisecond,
			SndCwnd: 10, SndMSS: 1448, BytesAcked: 1 << 40, DeliveryRate: 5, ECN: true, Timestamps: true,
			LastDataRecv: 7 * time.Millisecond, BusyTime: 9 * time.Microsecond,
			TotalRetrans: 4, NeedlessSent: 3, OutOfOrder: 2,
		},
	}
	var got Subflow
	if ok, err := decodeSubflow(msg, &got); !ok || err != nil || got != want {
		t.Errorf("subflow (%v, %v)\n%+v, want\n%+v", ok, err, got, want)
	}
}

// An older kernel's tcp_info is the beginning of ours.
func TestDecodeShortMetrics(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		raw := rapid.SliceOfN(rapid.Byte(), int(unsafe.Sizeof(unix.TCPInfo{})), 300).Draw(t, "tcp_info")
		n := rapid.IntRange(0, len(raw)).Draw(t, "length")
		var short, padded Metrics
		decodeMetrics(raw[:n], &short)
		full := slices.Clone(raw)
		clear(full[n:])
		decodeMetrics(full, &padded)
		if short != padded {
			t.Errorf("%d bytes read as\n%+v, with zeros after them as\n%+v", n, short, padded)
		}
	})
}

func TestDecodeSubflowSides(t *testing.T) {
	for _, tc := range []struct {
		name            string
		flags           uint32
		initial, server bool
	}{
		{"client's initial", flagMPCapableLocal | flagMPCapableRemote, true, false},
		{"server's initial", flagMPCapableRemote, true, true},
		{"client's join", flagJoinLocal | flagJoinRemote, false, false},
		{"client's join, connecting", flagJoinLocal, false, false},
		{"server's join", flagJoinRemote, false, true},
	} {
		var got Subflow
		msg := socketMessage(StateEstablished, testLocal, testRemote, ulp(attr32(subflowAttrFlags, tc.flags)))
		ok, err := decodeSubflow(msg, &got)
		if !ok || err != nil || got.Initial != tc.initial || got.ServerSide != tc.server {
			t.Errorf("%s: %+v (%v, %v)", tc.name, got, ok, err)
		}
	}
}

func TestDecodePlainSocket(t *testing.T) {
	var s Subflow
	msg := socketMessage(StateEstablished, testLocal, testRemote, attr(diagAttrInfo, make([]byte, 100)...))
	if ok, err := decodeSubflow(msg, &s); ok || err != nil {
		t.Errorf("a plain TCP socket is a subflow (%v, %v)", ok, err)
	}
}

func TestDecodeConnection(t *testing.T) {
	info := make([]byte, mptcpInfoTrafficLen)
	binary.NativeEndian.PutUint32(info[8:], infoFlagFallback)
	binary.NativeEndian.PutUint32(info[12:], 0xa)
	for i, off := range []int{48, 56, 64, 72} {
		binary.NativeEndian.PutUint64(info[off:], uint64(i+1))
	}
	for _, tc := range []struct {
		name string
		info []byte
		want Traffic
	}{
		{"whole", info, Traffic{BytesRetrans: 1, BytesSent: 2, BytesReceived: 3, BytesAcked: 4}},
		{"before 6.5", info[:43], Traffic{}},
	} {
		var got Connection
		msg := socketMessage(StateEstablished, testLocal, testRemote, attr(diagAttrInfo, tc.info...))
		ok, err := decodeConnection(msg, &got)
		if !ok || err != nil || got.Token != 0xa || !got.Fallback || got.Traffic != tc.want || got.over() {
			t.Errorf("%s: connection (%v, %v) %+v", tc.name, ok, err, got)
		}
	}
}

// A send buffer is full from two thirds on.
func TestDecodeSendBuffer(t *testing.T) {
	info := make([]byte, mptcpInfoLen)
	binary.NativeEndian.PutUint32(info[12:], 0xa)
	for _, tc := range []struct {
		limit, used uint32
		full        bool
	}{{90_000, 59_999, false}, {90_000, 60_000, true}, {90_000, 95_000, true}, {0, 0, false}, {1 << 31, 1 << 31, true}} {
		memory := make([]byte, 36)
		binary.NativeEndian.PutUint32(memory[memorySendBuffer:], tc.limit)
		binary.NativeEndian.PutUint32(memory[memoryWriteQueued:], tc.used)
		for _, attrs := range [][]byte{
			append(attr(diagAttrInfo, info...), attr(diagAttrMemory, memory...)...),
			append(attr(diagAttrMemory, memory...), attr(diagAttrInfo, info...)...),
		} {
			var c Connection
			ok, err := decodeConnection(socketMessage(StateEstablished, testLocal, testRemote, attrs), &c)
			if !ok || err != nil || c.progress.SendFull != tc.full {
				t.Errorf("%d of %d bytes: %v (%v, %v)", tc.used, tc.limit, c.progress.SendFull, ok, err)
			}
		}
	}
}

func TestBytesSacked(t *testing.T) {
	for _, tc := range []struct {
		m    Metrics
		want uint64
	}{
		{Metrics{BytesSent: 30_000, BytesRetrans: 2000, BytesAcked: 18_000, Unacked: 10, Sacked: 4, SndMSS: 1400}, 4000},
		{Metrics{BytesSent: 2_000_000, BytesAcked: 18_000, Unacked: 10, Sacked: 4, SndMSS: 1400}, 5600}, // much was dropped on this host
		{Metrics{BytesSent: 30_000, BytesRetrans: 60_000, BytesAcked: 18_000, Unacked: 10, Sacked: 4, SndMSS: 1400}, 0},
		{Metrics{BytesSent: 30_000, BytesAcked: 18_000, Unacked: 10, SndMSS: 1400}, 0},
		{Metrics{BytesSent: 18_000, BytesAcked: 18_001, Unacked: 1, Sacked: 1, SndMSS: 1400}, 0}, // the FIN is in flight, and the SYN is acknowledged
		{Metrics{BytesSent: 30_000, BytesAcked: 18_000, Sacked: 3, SndMSS: 1400}, 0},
	} {
		if got := tc.m.BytesSacked(); got != tc.want {
			t.Errorf("%+v: %d, want %d", tc.m, got, tc.want)
		}
	}
}

func FuzzDecodeEvents(f *testing.F) {
	f.Add(eventMessage(Established, attr32(eventToken, 1), attrAddr(eventLocal4, "10.0.0.2"), attrPort(eventLocalPort, 1)))
	f.Add(eventMessage(SubflowClosed, attrAddr(eventRemote6, "2001:db8::7"), attr(eventError, 111)))
	f.Fuzz(func(t *testing.T, b []byte) {
		events := 0
		_ = decodeEvents(b, testFamily, func(ev Event) {
			events++
			_ = ev.String()
		})
		if events > len(b)/netlinkHeaderLen {
			t.Errorf("%d events in %d bytes", events, len(b))
		}
	})
}

func FuzzDecodeSocket(f *testing.F) {
	f.Add(socketMessage(StateEstablished, testLocal, testRemote, attr(diagAttrInfo, make([]byte, 248)...), ulp(attr32(subflowAttrTokenLocal, 1))))
	f.Add(socketMessage(StateSynSent, testLocal, testRemote, attr(diagAttrInfo, make([]byte, 96)...)))
	f.Fuzz(func(t *testing.T, b []byte) {
		var s Subflow
		if ok, err := decodeSubflow(b, &s); ok && err != nil {
			t.Errorf("a subflow and the error %v", err)
		}
		var c Connection
		if ok, err := decodeConnection(b, &c); ok && (err != nil || c.Token == 0) {
			t.Errorf("a connection with token %d and the error %v", c.Token, err)
		}
		if end, ok, err := decodeEnd(b); ok && err != nil {
			t.Errorf("an end %+v and the error %v", end, err)
		}
	})
}

// While this host only receives, arriving data tells the round trip, as long as data keeps coming. Otherwise it is that of
// the data that this host sent last.
func TestLatestRTT(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		change   func(*Metrics)
		rtt, age time.Duration
	}{
		"a download":                          {func(*Metrics) {}, 83 * ms, 2 * ms},
		"a slow download":                     {func(m *Metrics) { m.LastDataRecv = 80 * ms }, 83 * ms, 80 * ms},
		"the answer to a request begins":      {func(m *Metrics) { m.LastDataSent = 900 * ms }, 28 * ms, 900 * ms},
		"an upload":                           {func(m *Metrics) { m.LastDataSent = ms }, 28 * ms, ms},
		"idle after a download":               {func(m *Metrics) { m.LastDataRecv = 2 * time.Second }, 28 * ms, 40 * time.Second},
		"idle after an upload":                {func(m *Metrics) { m.LastDataRecv = 41 * time.Second }, 28 * ms, 40 * time.Second},
		"nothing received but the handshake":  {func(m *Metrics) { m.ReceiverRTT = 0 }, 28 * ms, 40 * time.Second},
		"a window fills, without timestamps":  {func(m *Metrics) { m.Timestamps = false }, 28 * ms, 40 * time.Second},
		"a short path, and times to 4 ms":     {func(m *Metrics) { m.ReceiverRTT, m.LastDataRecv = ms, 4*ms }, ms, 4 * ms},
		"a long path whose data comes rarely": {func(m *Metrics) { m.ReceiverRTT, m.LastDataRecv = 700*ms, 500*ms }, 700 * ms, 500 * ms},
	} {
		m := Metrics{RTT: 28 * ms, ReceiverRTT: 83 * ms, Timestamps: true, LastDataSent: 40 * time.Second, LastDataRecv: 2 * ms}
		c.change(&m)
		if rtt, age := m.LatestRTT(); rtt != c.rtt || age != c.age {
			t.Errorf("%s: %v, measured %v ago; want %v, %v", name, rtt, age, c.rtt, c.age)
		}
	}
}
