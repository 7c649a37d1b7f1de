package crew

import "testing"

func TestTunnelOf(t *testing.T) {
	via := []string{"w1", "w2"}
	for iface, want := range map[string]string{
		"dcolwg0": "wireguard w1", "dcolwg1": "wireguard w2", "dcolov1": "openvpn w2",
		"dcolwg2": "", "dcolwg": "", "dcolwg-1": "", "eth0": "", "dcolxx0": "", "dcolwgs": "", "": "",
	} {
		kind, waypoint := tunnelOf(iface, via)
		got := ""
		if waypoint != "" {
			got = kind.String() + " " + waypoint
		}
		if got != want {
			t.Errorf("%s is %q, want %q", iface, got, want)
		}
	}
}
