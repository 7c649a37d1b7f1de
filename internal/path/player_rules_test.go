package path_test

import (
	"slices"
	"strings"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// rule reads "policy mesh full|backup|single [uplinks NAME,…] [kinds KIND,…]" "policy ports N" or "policy paths N", and then "[bytes N]
// [after TIME] [below N] [above TIME] [refresh] [refuse] [quota PATH=N] [every TIME] [for PORT] [tls PORT] [worth]".
func (p *player) rule(words []string) path.Config {
	r := path.Rule{
		Name: words[1], Refresh: slices.Contains(words, "refresh"), RefuseJoins: slices.Contains(words, "refuse"),
	}
	switch words[1] {
	case "ports":
		r.Policy = policy.Ports{Subflows: p.number(words[2])}
	case "paths":
		r.Policy = policy.Paths{Subflows: p.number(words[2])}
	default:
		mesh := policy.Mesh{Mode: map[string]policy.Mode{"full": policy.FullMode, "backup": policy.BackupMode, "single": policy.SingleMode}[words[2]]}
		if names := after(words, "uplinks"); names != "" {
			mesh.Uplinks = strings.Split(names, ",")
		}
		if kinds := after(words, "kinds"); kinds != "" {
			for word := range strings.SplitSeq(kinds, ",") {
				mesh.Kinds = append(mesh.Kinds, p.kind(word))
			}
		}
		r.Policy = mesh
	}
	if n := after(words, "bytes"); n != "" {
		r.Start.Bytes = uint64(p.number(n))
	}
	if n := after(words, "below"); n != "" {
		r.Start.Below = float64(p.number(n))
	}
	if d := after(words, "above"); d != "" {
		r.Start.AboveRTT = p.duration(d)
	}
	if d := after(words, "after"); d != "" {
		r.Start.After = p.duration(d)
	}
	if d := after(words, "every"); d != "" {
		r.QuotaEvery = p.duration(d)
	}
	if quota := after(words, "quota"); quota != "" {
		name, n, _ := strings.Cut(quota, "=")
		r.Quota = map[string]uint64{name: uint64(p.number(n))}
	}
	if port := after(words, "for"); port != "" {
		r.Ports = []uint16{uint16(p.number(port))}
	}
	cfg := path.Config{Policy: policy.Detours{Subflows: 2}, Rules: []path.Rule{r}, ByWorth: slices.Contains(words, "worth")}
	if port := after(words, "tls"); port != "" {
		cfg.TLSPorts = []uint16{uint16(p.number(port))}
	}
	return cfg
}
