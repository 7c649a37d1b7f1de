package inband

import (
	"bytes"
	"net/netip"
)

// parsed is what the programs are to find among options.
type parsed struct {
	detours, timestamps int
	broken              bool
	server              netip.Addr
	tsvalAt             int
}

// parse is the model of the programs' walk, written from RFC 9293, section 3.1.
func parse(options []byte) (p parsed) {
	for i := 0; i < len(options) && options[i] != 0; {
		if options[i] == 1 {
			i++
			continue
		}
		rest := options[i:]
		size := 0
		if len(rest) > 1 {
			size = int(rest[1])
		}
		if size >= 4 && bytes.HasPrefix(rest, []byte{254, byte(size), 0xdc, 0x01}) {
			p.detours++
			p.broken = p.broken || size != 8
			if size == 8 && len(rest) >= 8 {
				p.server = netip.AddrFrom4([4]byte(rest[4:8]))
			}
		}
		if rest[0] == 8 && size == 10 {
			p.timestamps++
			p.tsvalAt = i + 2
		}
		if size < 2 || size > len(rest) {
			p.broken = true
			break
		}
		i += size
	}
	return p
}
