package scenario

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/detour-collective/dcol/internal/units"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const minimal = `
schema = "dcol.scenario/1"
name = "minimal"
[[host]]
name = "client"
roles = ["client"]
[[host]]
name = "server"
roles = ["server"]
[[link]]
name = "1"
a = "client"
b = "server"
[[procedure]]
name = "tcp"
transport = "tcp"
`

func parse(t *testing.T, text string) *Scenario {
	t.Helper()
	s, err := Parse("test.toml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestDefaults(t *testing.T) {
	s := parse(t, minimal)
	want := &Scenario{
		Schema: Schema, Name: "minimal", Congestion: "cubic", Repetitions: 10, Seed: 1,
		Hosts:      []Host{{Name: "client", Roles: []Role{RoleClient}}, {Name: "server", Roles: []Role{RoleServer}}},
		Links:      []Link{{Name: "1", A: "client", B: "server", Cost: 1, MTU: 1500}},
		Workload:   Workload{Kind: Upload, Client: "client", Server: "server", Duration: units.Duration(10 * time.Second), Port: 5201},
		Procedures: []Procedure{{Name: "tcp", Transport: TCP, Detour: NoDetour, Converter: ConvertNever}},
	}
	if diff := cmp.Diff(want, s); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
}

// A link's radio is a table of its key.
func TestRadio(t *testing.T) {
	s := parse(t, strings.Replace(minimal, `b = "server"`, "b = \"server\"\nradio = { wake = \"2s\", sleep = \"5s\", power = 800, low = 400 }", 1))
	want := &Radio{Wake: units.Duration(2 * time.Second), Sleep: units.Duration(5 * time.Second), Power: 800, Low: 400}
	if diff := cmp.Diff(want, s.Links[0].Radio); diff != "" || !s.HasRadio() {
		t.Errorf("radio (-want +got):\n%s", diff)
	}
	if parse(t, minimal).HasRadio() {
		t.Error("there is a radio without the key")
	}
}

func TestProcedureDefaults(t *testing.T) {
	s := parse(t, strings.Replace(minimal, `roles = ["server"]`, "roles = [\"server\"]\n[[host]]\nname = \"w\"\nroles = [\"waypoint\"]\n[[link]]\nname = \"2\"\na = \"client\"\nb = \"w\"", 1)+`
[[procedure]]
name = "mptcp"
transport = "mptcp"
[[procedure]]
name = "dcol"
transport = "mptcp"
detour = "mapped"
[[procedure]]
name = "tcp-detour"
transport = "tcp"
detour = "mapped"
[[procedure]]
name = "dcol-in-band"
transport = "mptcp"
detour = "in-band"
optional = true
[[procedure]]
name = "tcp-wireguard"
transport = "tcp"
detour = "wireguard"
optional = true
`)
	want := []Procedure{
		{Name: "tcp", Transport: TCP, Detour: NoDetour, Converter: ConvertNever},
		{Name: "mptcp", Transport: MPTCP, Detour: NoDetour, Subflows: 1, Converter: ConvertNever},
		{Name: "dcol", Transport: MPTCP, Detour: Mapped, Via: []string{"w"}, Subflows: 2, Converter: ConvertNever},
		{Name: "tcp-detour", Transport: TCP, Detour: Mapped, Via: []string{"w"}, Converter: ConvertNever},
		{Name: "dcol-in-band", Transport: MPTCP, Detour: InBand, Via: []string{"w"}, Subflows: 2, Optional: true, Converter: ConvertNever},
		{Name: "tcp-wireguard", Transport: TCP, Detour: WireGuard, Via: []string{"w"}, Optional: true, Converter: ConvertNever},
	}
	if diff := cmp.Diff(want, s.Procedures); diff != "" {
		t.Errorf("procedures (-want +got):\n%s", diff)
	}
	if !s.UsesDCol() || parse(t, minimal).UsesDCol() {
		t.Error("UsesDCol is wrong about who needs agents")
	}
}

// Optional procedures run when they are named, and only then.
func TestSelect(t *testing.T) {
	s := &Scenario{Name: "kinds", Procedures: []Procedure{
		{Name: "tcp", Detour: NoDetour}, {Name: "dcol", Detour: Mapped},
		{Name: "vpn", Detour: OpenVPN, Optional: true}, {Name: "opt", Detour: InBand, Optional: true},
	}}
	for _, test := range []struct {
		names []string
		want  string
		kinds []Detour
	}{
		{nil, "tcp dcol", []Detour{Mapped}},
		{[]string{"vpn"}, "vpn", []Detour{OpenVPN}},
		{[]string{"opt", "dcol", "dcol"}, "dcol opt", []Detour{Mapped, InBand}},
		{[]string{"tcp"}, "tcp", nil},
		{[]string{"all"}, "tcp dcol vpn opt", []Detour{Mapped, InBand, OpenVPN}},
	} {
		chosen, err := s.Select(test.names)
		if err != nil {
			t.Errorf("%q: %v", test.names, err)
		}
		var got []string
		for _, p := range chosen {
			got = append(got, p.Name)
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%q: %q, want %q", test.names, got, test.want)
		}
		if diff := cmp.Diff(test.kinds, KindsOf(chosen, Variant{})); diff != "" {
			t.Errorf("%q: kinds (-want +got):\n%s", test.names, diff)
		}
	}
	if _, err := s.Select([]string{"dcl"}); err == nil || !strings.Contains(err.Error(), `did you mean "dcol"`) {
		t.Errorf("error %v", err)
	}
	s.Procedures = s.Procedures[2:]
	if _, err := s.Select(nil); err == nil || !strings.Contains(err.Error(), "vpn, opt") {
		t.Errorf("all are optional: error %v", err)
	}
}

// What is expected of procedures that do not run is not decided.
func TestExpectationIsAbout(t *testing.T) {
	e := Expectation{That: `median("dcol") >= 0.9 * median("tcp")`, Variants: []string{"base"}}
	for _, test := range []struct {
		variant    string
		procedures []string
		want       bool
	}{
		{"base", []string{"tcp", "dcol", "vpn"}, true},
		{"base", []string{"tcp", "vpn"}, false},
		{"lossy", []string{"tcp", "dcol"}, false},
	} {
		if got := e.About(test.variant, test.procedures, []string{"base", "lossy"}); got != test.want {
			t.Errorf("about %s with %v: %v", test.variant, test.procedures, got)
		}
	}
	other := Expectation{That: `median("tcp") < share("tcp", "direct", "lossy") * median("tcp", "far")`}
	for _, variants := range [][]string{{"base", "lossy", "far"}, {"base", "lossy"}, {"base", "far"}} {
		if got := other.About("base", []string{"tcp"}, variants); got != (len(variants) == 3) {
			t.Errorf("about base with %v: %v", variants, got)
		}
	}
}

// Directions and variants lie over each other in a fixed order: what a change
// says of the link wins over what the link says of one direction.
func TestShapes(t *testing.T) {
	s := parse(t, strings.Replace(minimal, `b = "server"`, `b = "server"
rate = "10mbit"
delay = "5ms"
b_to_a = { rate = "2mbit", loss = "0.5%" }
[[variant]]
name = "changed"
[[variant.change]]
link = "1"
rate = "3mbit"
a_to_b = { delay = "9ms" }`, 1))
	describe := func(v string) string {
		variant, ok := s.Variant(v)
		if !ok {
			t.Fatalf("no variant %s", v)
		}
		var out []string
		ab, ba := s.Shapes(variant)[0].Directions()
		for _, p := range []Params{ab, ba} {
			out = append(out, p.Rate.String(), p.Delay.String())
			if p.Loss != nil {
				out = append(out, p.Loss.String())
			}
		}
		return strings.Join(out, " ")
	}
	if got, want := describe("base"), "10mbit 5ms 2mbit 5ms 0.5%"; got != want {
		t.Errorf("base: %s, want %s", got, want)
	}
	if got, want := describe("changed"), "3mbit 9ms 3mbit 5ms 0.5%"; got != want {
		t.Errorf("changed: %s, want %s", got, want)
	}
}

// Inside lists the hosts behind a NAT: those reachable over inside links and routers, but not beyond.
func TestInside(t *testing.T) {
	s := parse(t, strings.Replace(minimal, `roles = ["server"]`, `roles = ["server"]
[[host]]
name = "home"
roles = ["router"]
middlebox = "drop-options"
nat = ["lan", "guests"]
forward = [{ protocol = "udp", port = 45672, to = "attic" }]
[[host]]
name = "stairs"
roles = ["router"]
[[host]]
name = "attic"
[[host]]
name = "guest"
[[host]]
name = "neighbour"
[[link]]
name = "lan"
a = "home"
b = "stairs"
[[link]]
name = "up"
a = "stairs"
b = "attic"
[[link]]
name = "guests"
a = "guest"
b = "home"
[[link]]
name = "wan"
a = "home"
b = "server"
[[link]]
name = "next"
a = "guest"
b = "neighbour"`, 1))
	home, _ := s.Host("home")
	if diff := cmp.Diff([]string{"stairs", "attic", "guest"}, s.Inside(home)); diff != "" {
		t.Errorf("inside (-want +got):\n%s", diff)
	}
	server, _ := s.Host("server")
	if got := s.Inside(server); len(got) != 0 {
		t.Errorf("behind a host without NAT there are %v", got)
	}
	if home.Middlebox != DropOptions || len(home.Forwards) != 1 || home.Forwards[0] != (Forward{ProtocolUDP, 45672, "attic"}) {
		t.Errorf("read as %+v", home)
	}
}

func TestQueue(t *testing.T) {
	tests := []struct {
		text, canonical string
		bytes           int
	}{
		{"64KiB", "64KiB", 65536},
		{"100p", "100p", 150000},
		{"1500 B", "1500B", 1500},
	}
	for _, test := range tests {
		var q Queue
		if err := q.UnmarshalText([]byte(test.text)); err != nil {
			t.Error(err)
			continue
		}
		if q.String() != test.canonical || q.In(1500) != test.bytes {
			t.Errorf("%q is %v, %d bytes", test.text, q, q.In(1500))
		}
	}
	for _, bad := range []string{"", "0p", "-1p", "p", "100", "12packets", "1e9p", "0B"} {
		var q Queue
		if err := q.UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("%q was taken for the queue %v", bad, q)
		}
	}
}

func TestRunTime(t *testing.T) {
	if got := parse(t, minimal).RunTime(Variant{}); got != 10*time.Second {
		t.Errorf("by duration: %v", got)
	}
	s := parse(t, strings.Replace(minimal, `b = "server"`, "b = \"server\"\nrate = \"8mbit\"", 1)+"[workload]\nkind = \"http\"\nsize = \"4MB\"\n")
	if got := s.RunTime(Variant{}); got != 4*time.Second {
		t.Errorf("4 MB at 8 Mbit/s: %v", got)
	}
}

// Each testdata/bad/NAME.toml has its errors in NAME.txt; -update writes them.
func TestErrors(t *testing.T) {
	files, err := filepath.Glob("testdata/bad/*.toml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			_, parseErr := Parse(filepath.Base(file), data)
			if parseErr == nil {
				t.Fatal("it parsed")
			}
			golden := strings.TrimSuffix(file, ".toml") + ".txt"
			got := parseErr.Error() + "\n"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("errors (-want +got):\n%s", diff)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"testdata/bad/*.toml", "../scenarios/*.toml"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Parse("fuzz.toml", data)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "fuzz.toml") {
				t.Errorf("the error does not name the file: %v", err)
			}
			return
		}
		for _, name := range s.VariantNames() {
			v, ok := s.Variant(name)
			if !ok || len(s.Shapes(v)) != len(s.Links) {
				t.Errorf("variant %q does not resolve", name)
			}
		}
		for _, h := range s.Hosts {
			if !hostName.MatchString(h.Name) {
				t.Errorf("took %q for a host", h.Name)
			}
		}
	})
}

// A variant's word on the workload is laid over the scenario's; defaults are filled
// in before.
func TestWorkloadIn(t *testing.T) {
	s := parse(t, minimal+`
[workload]
kind = "stream"
rate = "1mbit"
[[variant]]
name = "down"
[variant.workload]
direction = "download"
interval = "50ms"
duration = "4s"
[[event]]
at = "3s"
link = "1"
down = true
`)
	base, _ := s.Variant(Base)
	w := s.WorkloadIn(base)
	if w.Direction != Upload || w.Duration.Std() != 10*time.Second || w.MessageSize() != 2500 || w.Turns() != 500 {
		t.Errorf("as declared: %+v, %d messages of %d bytes", w, w.Turns(), w.MessageSize())
	}
	down, _ := s.Variant("down")
	w = s.WorkloadIn(down)
	if w.Kind != Stream || w.Direction != Download || w.MessageSize() != 6250 || w.Turns() != 80 || s.RunTime(down) != 4*time.Second {
		t.Errorf("down: %+v, %d messages of %d bytes", w, w.Turns(), w.MessageSize())
	}
	s = parse(t, strings.Replace(minimal, `b = "server"`, "b = \"server\"\nrate = \"8mbit\"", 1)+`
[workload]
kind = "http"
size = "1MB"
[[variant]]
name = "small"
[variant.workload]
size = "10KB"
count = 20
[[variant.change]]
link = "1"
rate = "800kbit"
`)
	small, _ := s.Variant("small")
	if w := s.WorkloadIn(small); w.Size != 10e3 || w.Count != 20 || s.RunTime(small) != 2*time.Second || s.RunTime(Variant{}) != time.Second {
		t.Errorf("small: %+v, in %v", w, s.RunTime(small))
	}
	s = parse(t, minimal+"[workload]\nkind = \"download\"\n[[variant]]\nname = \"up\"\n[variant.workload]\ndirection = \"upload\"\n")
	up, _ := s.Variant("up")
	if w := s.WorkloadIn(up); w.Kind != Upload || w.Direction != "" || s.WorkloadIn(Variant{}).Kind != Download {
		t.Errorf("up: %+v", w)
	}
}

// Events are within the workload's duration in every variant.
func TestEventWithinShortestWorkload(t *testing.T) {
	_, err := Parse("test.toml", []byte(minimal+`
[[variant]]
name = "short"
[variant.workload]
duration = "2s"
[[event]]
at = "3s"
link = "1"
down = true
`))
	if err == nil || !strings.Contains(err.Error(), "3s is not within the workload's duration, 2s") {
		t.Errorf("error %v", err)
	}
}
