package tunnel

import (
	"testing"

	"github.com/detour-collective/dcol/internal/path"
)

// On a host with both roles, both ends have different names, and both are recognised as ours.
func TestInterfaces(t *testing.T) {
	seen := map[string]bool{wireguardInterface: true, openvpnInterface: true}
	for _, kind := range []path.Kind{path.WireGuard, path.OpenVPN} {
		for n := range 12 {
			name := Interface(kind, n)
			if seen[name] || !Ours(name) {
				t.Errorf("%v %d: %q; ours: %t", kind, n, name, Ours(name))
			}
			seen[name] = true
		}
	}
	for _, kind := range []path.Kind{path.Mapped, path.InBand} {
		if name := Interface(kind, 0); name != "" {
			t.Errorf("%v has interface %q", kind, name)
		}
	}
}
