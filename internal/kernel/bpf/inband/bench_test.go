package inband

import (
	"testing"

	"github.com/cilium/ebpf"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
	"github.com/detour-collective/dcol/internal/packet"
)

// BenchmarkPacket is the time a program spends on one packet, the kernel's own
// for a test run included.
func BenchmarkPacket(b *testing.B) {
	r := openReceiver(b)
	data := sample{from: clientPort, to: waypointPort, flags: packet.ACK, options: optionTimestamps(1, 2), payload: make([]byte, 1400)}
	udp := data
	udp.protocol = 17
	stranger := authentic(memberKey, true, 1)
	known := authentic(Key{200}, true, 1)
	known.from = waypointPort
	var slots []Slot
	for i := range MaxSlots {
		slots = append(slots, Slot{Key: Key{byte(i)}, ClientPort: true, Expires: inAnHour()})
	}
	set(b, r, known.from.Addr(), slots...)
	s := openSender(b, netnstest.New(b), SenderConfig{})
	for _, c := range []struct {
		name    string
		program *ebpf.Program
		packet  sample
	}{
		{"egress/data", s.objects.SendEthernet, data},
		{"egress/UDP", s.objects.SendEthernet, udp},
		{"egress/SYN", s.objects.SendEthernet, syn(joinOptions(1, 0, nil))},
		{"ingress/data", r.objects.ReceiveEthernet, data},
		{"ingress/UDP", r.objects.ReceiveEthernet, udp},
		{"ingress/SYN", r.objects.ReceiveEthernet, syn(joinOptions(1, 0, nil))},
		{"ingress/join of a stranger", r.objects.ReceiveEthernet, stranger},
		{"ingress/join under none of 32 keys", r.objects.ReceiveEthernet, known},
	} {
		b.Run(c.name, func(b *testing.B) {
			_, each, err := c.program.Benchmark(c.packet.ethernet(), max(b.N, 1000), b.ResetTimer)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(each.Nanoseconds()), "ns/packet")
			b.ReportMetric(0, "ns/op")
		})
	}
}
