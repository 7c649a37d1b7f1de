package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func parse(t *testing.T, text string) *Config {
	t.Helper()
	c, err := Parse("conf", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// What Settings writes, Parse reads as the same configuration.
func TestSettingsAreTOML(t *testing.T) {
	sample := parse(t, Sample)
	var text strings.Builder
	for _, s := range sample.Settings() {
		text.WriteString(s.Key + " = " + s.Value + "\n")
	}
	back := parse(t, text.String())
	if d := sample.Differences(back); len(d) > 0 {
		t.Errorf("%+v\n%s", d, text.String())
	}
	if n := len(sample.Settings()); n < 70 {
		t.Errorf("only %d keys", n)
	}
}

// Every key that a reload changes is copied by Reloaded, and no other is.
func TestReloadedTakesTheReloadedKeys(t *testing.T) {
	for _, key := range reloaded {
		if !slices.ContainsFunc(Defaults(), func(s Setting) bool { return s.Key == key }) {
			t.Errorf("%s is no key", key)
		}
	}
	changes := []string{
		"log_level = \"debug\"\nrun_dir = \"/x\"" + minimal,
		minimal + "[client]\nsubflows = 3\nbulk_ports = [1]\nmessage_ports = [2]\ntls_ports = [3]\nexclude = []\nuse = [\"bob\"]\nuse_only = true\npublish_measurements = false\navoid = [\"eve\"]\nkinds = [\"mapped\"]\nselection = \"oldest\"",
		minimal + "[client.converter]\nuse = \"auto\"\nexclude = [\"192.0.2.0/24\"]\nexclude_ports = [22]\nexclude_domains = [\"example.org\"]\nexclude_programs = [\"/bin/x\"]\nexclude_cgroups = [\"/sys/fs/cgroup/x\"]\nproxy = \"127.0.0.1:1080\"",
		minimal + "[[client.waypoint]]\nname = \"bob\"\naddresses = [\"2001:db8::7\"]",
		minimal + "[waypoint]\nallow = [\"10.0.0.0/8\"]\ndeny = [\"2001:db8::/32\"]\ndeny_ports = []\nhours = [\"22:00-07:00\"]\nbandwidth = \"10mbit\"\n[[waypoint.member]]\nname = \"carol\"\nonly = [\"2001:db8:1::/48\"]\nports = [443]\nmonthly_quota = \"50GB\"",
	}
	seen := make(map[string]bool)
	for _, text := range changes {
		before, next := parse(t, minimal), parse(t, text)
		all := before.Differences(next)
		for _, left := range before.Reloaded(next).Differences(next) {
			if left.Reload {
				t.Errorf("%s was not taken over", left.Key)
			}
		}
		for _, taken := range before.Differences(before.Reloaded(next)) {
			if seen[taken.Key] = true; !taken.Reload {
				t.Errorf("%s was taken over", taken.Key)
			}
			if taken.NewOnly != slices.Contains(newOnly, taken.Key) {
				t.Errorf("%s: for new connections only: %v", taken.Key, taken.NewOnly)
			}
		}
		if len(all) < 2 && !strings.Contains(text, "client.waypoint") {
			t.Errorf("only %+v differ", all)
		}
	}
	for _, key := range newOnly {
		if !slices.Contains(reloaded, key) {
			t.Errorf("%s is not reloaded", key)
		}
	}
	for _, key := range reloaded {
		if !seen[key] {
			t.Errorf("%s was not tried", key)
		}
	}
}

func TestSet(t *testing.T) {
	many := minimal + "[client]\ntls_ports = [ # secure\n  443, # https\n  8443,\n] # all\nsubflows = 2\n"
	for _, test := range []struct{ before, key, value, after string }{
		{minimal + "[client]\nsubflows = 2 # direct, too\n", "client.subflows", "3", minimal + "[client]\nsubflows = 3 # direct, too\n"},
		{many, "client.tls_ports", "[443]", minimal + "[client]\ntls_ports = [443] # all\nsubflows = 2\n"},
		{many, "client.subflows", "4", strings.Replace(many, "subflows = 2", "subflows = 4", 1)},
		{minimal, "log_level", "debug", "log_level = \"debug\"\n" + minimal},
		{minimal, "log_level", `"info"`, "log_level = \"info\"\n" + minimal},
		{minimal + "[waypoint]\nmonthly_quota = '1GB' # a # b\n", "waypoint.monthly_quota", "2GB", minimal + "[waypoint]\nmonthly_quota = \"2GB\" # a # b\n"},
		{minimal + "[metrics]\nlisten = \"[::1]:9567\"#x", "metrics.listen", "", minimal + "[metrics]\nlisten = \"\"#x"},
	} {
		path := filepath.Join(t.TempDir(), "dcol.toml")
		if err := os.WriteFile(path, []byte(test.before), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Set(path, []Assignment{{test.key, test.value}}, func(*Config) error { return nil })
		if got, _ := os.ReadFile(path); err != nil || string(got) != test.after {
			t.Errorf("%s = %s: %v\n%s\nwant\n%s", test.key, test.value, err, got, test.after)
		}
	}
}

func TestSetRefuses(t *testing.T) {
	text := minimal + "[client]\nsubflows = 2\n[[client.waypoint]]\nname = \"bob\"\naddresses = [\"192.0.2.7\"]\n"
	for _, test := range []struct{ key, value, want string }{
		{"client.subflow", "3", `"client.subflow" is not a key of the configuration; did you mean "client.subflows"?`},
		{"subflows", "3", `"subflows" is not a key of the configuration; did you mean "client.subflows"?`},
		{"clientt", "3", `did you mean "client"?`},
		{"client", "3", `"client" is a section of the configuration, not a key; dcol config get client shows its keys`},
		{"client.convertor.us", "never", `did you mean "client.converter.use" or "client.converter"`},
		{"listen", "9", `did you mean "session.listen" or "metrics.listen"`},
		{"zzzzzzzz", "1", `"zzzzzzzz" is not a key of the configuration; dcol config get lists all`},
		{"client.subflows", "9", `would be wrong: client.subflows: must be from 1 to 8`},
		{"client.subflows", "many", `client.subflows: many is no value of TOML`},
		{"client.subflows", "2\nkinds = []", `is no value of TOML`},
		{"client.subflows", "3 # so", `is no value of TOML`},
		{"client.use", "north", `client.use is a list of strings: dcol config set client.use '["north"]'`},
		{"client.kinds", "[mapped, in-band]", `client.kinds is a list of strings: dcol config set client.kinds '["mapped", "in-band"]'`},
		{"waypoint.allow", "10.0.0.0/8", `waypoint.allow is a list of strings: dcol config set waypoint.allow '["10.0.0.0/8"]'`},
		{"waypoint.hours", "", `waypoint.hours is a list of strings: dcol config set waypoint.hours '[]'`},
		{"client.tls_ports", "443 8443", `client.tls_ports is a list of whole numbers: dcol config set client.tls_ports '[443, 8443]'`},
		{"client.bulk_ports", "80", `client.bulk_ports is a list of whole numbers: dcol config set client.bulk_ports '[80]'`},
		{"client.bulk_ports", "http", `client.bulk_ports is a list of whole numbers, such as '[443, 8443]'`},
		{"client.use", `"north"`, `client.use is a list of strings: dcol config set client.use '["north"]'`},
		{"client.exclude", `["10.0.0.0/33"]`, `would be wrong: client.exclude[0]: "10.0.0.0/33" is not a network, such as`},
		{"client.budget.total", "0GB", `would be wrong: client.budget.total: "0GB" is zero: write an amount such as`},
		{"client.budget.metered", "2GB", `set both at once: dcol config set client.budget.metered 2GB client.budget.metered_interfaces '["wwan0"]'`},
		{"client.budget.metered_interfaces", `["nope0"]`, `set both at once: dcol config set client.budget.metered_interfaces '["nope0"]' client.budget.metered 1GB`},
		{"client.waypoint", "[]", `client.waypoint is a table that may be repeated`},
		{"log_level", "loud", `"loud" is not a level`},
	} {
		path := filepath.Join(t.TempDir(), "conf.toml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Set(path, []Assignment{{test.key, test.value}}, func(*Config) error { return nil }); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s = %s: %v, want %s", test.key, test.value, err, test.want)
		}
		if got, _ := os.ReadFile(path); string(got) != text {
			t.Errorf("%s = %s changed the file:\n%s", test.key, test.value, got)
		}
	}
}

// Keys that need each other are set at once, and either all are set or none.
func TestSetSeveral(t *testing.T) {
	const budget = minimal + "\n[client.budget]\nmetered_interfaces = [\"wwan0\"]\nmetered = \"1GB\"\n"
	amount, interfaces := "client.budget.metered", "client.budget.metered_interfaces"
	for name, test := range map[string]struct {
		before string
		list   []Assignment
		after  string // empty: as before
		want   string // in the error; empty: none
	}{
		"both":          {minimal, []Assignment{{amount, "1GB"}, {interfaces, `["wwan0"]`}}, budget, ""},
		"neither":       {budget, []Assignment{{amount, "unlimited"}, {interfaces, "[]"}}, strings.NewReplacer(`["wwan0"]`, "[]", "1GB", "unlimited").Replace(budget), ""},
		"as it was":     {budget, []Assignment{{amount, "1GB"}, {"client.subflows", "2"}}, budget + "\n[client]\nsubflows = 2\n", ""},
		"one wrong":     {minimal, []Assignment{{"client.subflows", "3"}, {"client.use_only", "true"}}, "", "needs at least one waypoint"},
		"one unknown":   {minimal, []Assignment{{"client.subflows", "3"}, {"client.us", "[]"}}, "", "is not a key"},
		"twice":         {minimal, []Assignment{{"client.subflows", "3"}, {"client.subflows", "4"}}, "", "client.subflows is given two values"},
		"no list":       {minimal, []Assignment{{amount, "1GB"}, {interfaces, "wwan0"}}, "", `is a list of strings: dcol config set client.budget.metered 1GB client.budget.metered_interfaces '["wwan0"]'`},
		"one ended":     {budget, []Assignment{{amount, "unlimited"}}, "", `set both at once: dcol config set client.budget.metered unlimited client.budget.metered_interfaces '[]'`},
		"no interfaces": {budget, []Assignment{{interfaces, "[]"}}, "", `set both at once: dcol config set client.budget.metered_interfaces '[]' client.budget.metered unlimited`},
	} {
		path := filepath.Join(t.TempDir(), "dcol.toml")
		if err := os.WriteFile(path, []byte(test.before), 0o600); err != nil {
			t.Fatal(err)
		}
		changes, err := Set(path, test.list, func(*Config) error { return nil })
		switch {
		case test.want == "" && (err != nil || len(changes) != len(test.list)):
			t.Errorf("%s: %v, %v", name, changes, err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s: %v, want %s", name, err, test.want)
		}
		want := test.after
		if want == "" {
			want = test.before
		}
		if got, _ := os.ReadFile(path); string(got) != want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, want)
		}
	}
}
