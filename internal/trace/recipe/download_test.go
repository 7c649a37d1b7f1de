package recipe

import (
	"net/netip"
	"testing"

	"github.com/detour-collective/dcol/internal/packet"
)

// The server's first data is compared with its mappings, wherever they come.
func TestMapping(t *testing.T) {
	const first, initial = 1000, uint64(0x1_0000_0000) - 3 // whose lower half passes 0 in the data
	fits := packet.DSS{Flags: packet.DSSMap | packet.DSSMap8, Sequence: initial + 1, Subflow: 1, Length: 5}
	with := func(change func(*packet.DSS)) packet.DSS {
		d := fits
		change(&d)
		return d
	}
	sum := packet.DSSChecksum(initial+1, 1, 5, []byte("hello"))
	for name, c := range map[string]struct {
		mappings []packet.DSS
		want     mapping
	}{
		"none":                     {nil, unmapped},
		"the data's":               {[]packet.DSS{fits}, fitting},
		"of 4 bytes":               {[]packet.DSS{with(func(d *packet.DSS) { d.Flags, d.Sequence = packet.DSSMap, d.Sequence&0xffffffff })}, fitting},
		"with more behind":         {[]packet.DSS{with(func(d *packet.DSS) { d.Length = 2000 })}, fitting},
		"two parts":                {[]packet.DSS{with(func(d *packet.DSS) { d.Length = 2 }), with(func(d *packet.DSS) { d.Sequence, d.Subflow, d.Length = initial+3, 3, 3 })}, fitting},
		"the first part only":      {[]packet.DSS{with(func(d *packet.DSS) { d.Length = 2 })}, misfitting},
		"one of them the DATA_FIN": {[]packet.DSS{with(func(d *packet.DSS) { d.Flags |= packet.DSSFinish })}, misfitting},
		"data and DATA_FIN":        {[]packet.DSS{with(func(d *packet.DSS) { d.Flags, d.Length = d.Flags|packet.DSSFinish, 6 })}, fitting},
		"DATA_FIN only":            {[]packet.DSS{with(func(d *packet.DSS) { d.Flags, d.Subflow, d.Length = d.Flags|packet.DSSFinish, 0, 1 })}, misfitting},
		"another number":           {[]packet.DSS{with(func(d *packet.DSS) { d.Sequence++ })}, misfitting},
		"another place":            {[]packet.DSS{with(func(d *packet.DSS) { d.Sequence, d.Subflow = d.Sequence+1, 2 })}, misfitting},
		"infinite":                 {[]packet.DSS{with(func(d *packet.DSS) { d.Length = 0 })}, infinite},
		"with its checksum":        {[]packet.DSS{with(func(d *packet.DSS) { d.HasChecksum, d.Checksum = true, sum })}, fitting},
		"with another checksum":    {[]packet.DSS{with(func(d *packet.DSS) { d.HasChecksum, d.Checksum = true, sum+1 })}, corrupted},
	} {
		d := download{first: first, initial: initial}
		from, to := netip.MustParseAddrPort("192.0.2.1:80"), netip.MustParseAddrPort("192.0.2.2:9")
		for _, m := range c.mappings {
			d.take(packet.Segment(from, to, packet.TCP{Seq: first + 1, Options: []packet.Option{m.Option()}}, nil))
		}
		if d.arrived() {
			t.Errorf("%s: data has arrived without any", name)
		}
		d.take(packet.Segment(from, to, packet.TCP{Seq: first + 3}, []byte("llo")))
		d.take(packet.Segment(from, to, packet.TCP{Seq: first + 1}, []byte("hello")))
		if got := d.mapping(); got != c.want || !d.arrived() {
			t.Errorf("%s: %v, not %v", name, got, c.want)
		}
	}
}
