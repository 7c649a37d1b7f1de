package present

import (
	"fmt"
	"strings"

	"github.com/detour-collective/dcol/internal/trace"
	"github.com/detour-collective/dcol/internal/trace/compare"
)

// asaMSS is the largest segment that a Cisco ASA lets through by default (sysopt connection tcpmss).
const asaMSS = "1380"

// fingerprint names the kind of middlebox that the findings fit, or "" for none. A Cisco ASA with default settings
// shifts sequence numbers, lowers the MSS to 1380, and overwrites unknown options by NOPs. Each of these alone is
// common, so two of them in one place are required.
func fingerprint(p *trace.Path) string {
	var marks []string
	after, by := 0, trace.MaxHops
	mark := func(f compare.Finding, text string) {
		if max(after, f.After) >= min(by, f.By) {
			return // in another place
		}
		after, by = max(after, f.After), min(by, f.By)
		marks = append(marks, text)
	}
	for _, f := range p.Findings {
		switch {
		case f.Field == compare.Seq:
			mark(f, "sequence numbers moved")
		case f.Field == compare.MSS && f.Seen.Text == asaMSS:
			mark(f, "MSS "+asaMSS)
		case f.Field == compare.Capable && f.Kind() == compare.Removed && f.Padded:
			mark(f, "MP_CAPABLE overwritten by NOPs")
		}
	}
	if len(marks) < 2 {
		return ""
	}
	return fmt.Sprintf("the changes between hop %d and hop %d (%s) are those of a Cisco ASA with default settings; other firewalls may do the same.",
		after, by, strings.Join(marks, ", "))
}
