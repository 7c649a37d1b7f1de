package api

import (
	"encoding/json"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"
)

// Every field of the schemas is documented in docs/cli.md, and set in full and fullLog.
func TestEveryFieldIsDocumented(t *testing.T) {
	documented(t, "dcol status", full())
	documented(t, "dcol why", fullWhy())
	documented(t, "dcol log", fullLog())
	documented(t, "dcol cc", fullTransport())
	documented(t, "dcol history", fullHistory())
}

func fullTransport() Transport {
	return Transport{
		Schema: TransportSchema, Available: []string{"cubic"}, Default: "cubic", Problem: "none",
		Options: &Options{
			Networks: []string{"10.0.0.0/8"}, Known: []Option{{Name: "congestion", Asks: "bbr", Grants: "[cubic]"}},
			Counts: []OptionCount{{Option: "congestion", Verdict: "granted", Count: 1}}, Calls: 1,
			Recent: []OptionReport{{
				At: time.Unix(1, 0), Local: netip.MustParseAddrPort("192.0.2.1:1"), Remote: netip.MustParseAddrPort("192.0.2.2:1"),
				Option: "congestion", Asked: "bbr", Verdict: "granted", Granted: "bbr", Why: "so",
			}},
			Unannounced: []Unannounced{{netip.MustParsePrefix("192.0.2.0/24"), time.Unix(1, 0)}}, UnannouncedInternet: time.Unix(1, 0),
		},
		Congestion: []Congestion{{Use: "lia", Name: "lia_2", Cgroup: "/a", Ports: []int{1}, Networks: []string{"10.0.0.0/8"}, Set: 1, Refused: 1, AtRunTime: true}},
	}
}

func fullHistory() History {
	p := Period{
		Start: time.Unix(1, 0), Observed: 1, Paths: []PathUsed{{Kind: "mapped", Waypoint: "bob", Received: 1, Sent: 1, RTT: 1, Samples: 1}},
		Gained: Gained{DetourBytes: 1, Stalls: 1, StallTime: 1, Saved: 1, SavedLow: 1, SavedHigh: 1, SavedUnknown: 1},
	}
	return History{Schema: HistorySchema, Step: StepHour, Problem: "full", Periods: []Period{p}, Total: p}
}

func fullWhy() Why {
	at, now := netip.MustParseAddrPort("192.0.2.1:1"), time.Unix(1, 0)
	rate := 1.0
	measured := Measured{At: now, MinRTT: 1, Loss: 1, Packets: 1, Goodput: 1, Failures: 1}
	return Why{
		Schema: WhySchema, Server: at, Connections: full().Client.Connections, Direct: Outlook{measured, 1, &rate}, Unavailable: []Unavailable{{"carol", WaypointDown, "no answer"}}, Note: "none", NoteReason: &Reason{Code: "no-detour"}, Fixes: []string{"wait"},
		Closed:     []ClosedConnection{{full().Client.Connections[0], now}},
		Candidates: []Candidate{{"bob", at.Addr(), "mapped", true, true, measured, 1, true, true, &rate, "near", "at more", Reason{Code: "lossy", Loss: 1, Failures: 1, Budget: "total", Compared: []Compared{{"carol", 1, 1, 1, 1, 0, 0}}}, now, &Claimed{1, 1, true, "low", "high"}, []Bottleneck{{"carol", "shared", 3, 1, 1, 1}}}},
		Probed:     []ProbedPath{{now, at, "bob", "mptcp", "changed", "certain", "It is.", []string{"a quote"}}},
	}
}

// fullReason returns a Reason for a subflow with every field set.
func fullReason() Reason {
	return Reason{
		Code: "lossy", Loss: 1, Goodput: 1, Before: 1, With: 1, Without: 1, Limit: 1, Missed: 1, Held: 1, Carried: 1, Silent: 1, Unanswered: 1,
		Compared: []Compared{{"carol", 1, 1, 1, 1, 1, 1}},
	}
}

func fullLog() Log {
	at, now, n := netip.MustParseAddrPort("192.0.2.1:1"), time.Unix(1, 0), uint64(1)
	return Log{
		Schema: LogSchema, Older: 1,
		Flows: []LogFlow{{Opened: now, Closed: now, Member: "alice", Serial: "0a", Kind: "mapped", Client: at, Server: at, Egress: at,
			BytesFromClient: &n, BytesToClient: &n, Session: "01"}},
		Sessions: []LogSession{{Session: "01", Collective: "test", Waypoint: "bob", Member: "alice", Serial: "0a", Opened: now, Stated: now,
			Message: []byte{1}, Signature: []byte{1}, Chain: [][]byte{{1}}, Proven: true, Why: "not"}},
	}
}

func documented(t *testing.T, command string, all any) {
	t.Helper()
	doc, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(doc), "\n## "+command+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	if !found {
		t.Fatal("docs/cli.md has no section on", command)
	}
	data, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(data, &fields); err != nil {
		t.Fatal(err)
	}
	_, status, _ := strings.Cut(string(doc), "\n## dcol status\n")
	status, _, _ = strings.Cut(status, "\n## ")
	var visit func(path string, v any)
	visit = func(path string, v any) {
		switch v := v.(type) {
		case []any:
			if len(v) == 0 {
				t.Errorf("full has no %s", path)
			}
			for _, e := range v {
				visit(path, e)
			}
		case map[string]any:
			if path == ".serving.refused" || path == ".collective.ignored" { // one number for each reason
				return
			}
			section := section
			if command == "dcol why" && (strings.HasPrefix(path, ".connections") || strings.HasPrefix(path, ".closed")) {
				section += status // its fields of connections are those of dcol status
			}
			for key, e := range v {
				if !strings.Contains(section, "`"+key+"`") && !strings.Contains(section, "."+key+"`") && !strings.Contains(section, key+"[]`") {
					t.Errorf("docs/cli.md does not explain %s.%s", path, key)
				}
				visit(path+"."+key, e)
			}
		default:
			if v == nil || v == "" || v == 0.0 {
				t.Errorf("full has no %s", path)
			}
		}
	}
	visit("", fields)
}
