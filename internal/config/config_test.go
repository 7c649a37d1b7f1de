package config

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// minimal is the least that a file must say.
const minimal = `
name  = "alice"
roles = ["client", "waypoint"]
[identity]
certificate = "a.crt"
key = "a.key"
ca = "ca.crt"
`

// coordinating has the role.
var coordinating = strings.Replace(minimal, `"client", "waypoint"`, `"client", "coordinator"`, 1)

func ranges(list string) string { return "\ntunnel_ranges = [" + list + "]" + minimal }

func incoming(converter string, port int, to string) string {
	return fmt.Sprintf("[[client.converter.incoming]]\nconverter = %q\nport = %d\nto = %q\n", converter, port, to)
}

func manyIncoming(n int) (tables string) {
	for i := range n {
		tables += incoming("bob", 8000+i, "127.0.0.1:80")
	}
	return tables
}

func TestSampleSaysTheDefaults(t *testing.T) {
	sample, err := Parse("sample", []byte(Sample))
	if err != nil {
		t.Fatal(err)
	}
	bare, err := Parse("bare", []byte(minimal))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(bare, sample, cmpopts.IgnoreFields(Config{}, "Identity"),
		cmpopts.IgnoreFields(Client{}, "Waypoints"), cmpopts.EquateComparable(netip.Prefix{}), cmpopts.EquateEmpty()); d != "" {
		t.Errorf("the sample differs from the defaults (-default +sample):\n%s", d)
	}
}

func TestBadValues(t *testing.T) {
	for _, test := range []struct{ file, want string }{
		{strings.Replace(minimal, "roles", "role", 1), `conf:3: role: unknown key; did you mean "roles"?`},
		{minimal + "[client]\nsubflow = 3", `conf:9: client.subflow: unknown key; did you mean "subflows"?`},
		{minimal + "[client]\nsubflows = \"2\"", `conf:9: client.subflows: must be a whole number, not a string`},
		{minimal + "[client]\nsubflows = 9", `conf:9: client.subflows: must be from 1 to 8 (1: no detours), not 9`},
		{minimal + "[client]\nkinds = [\"inband\"]", `conf:9: client.kinds: "inband" is not a kind of detour; did you mean "in-band"?`},
		{minimal + "[client]\nkinds = [\"mapped\", \"mapped\"]", `conf:9: client.kinds: "mapped" is listed twice`},
		{minimal + "[client]\nkinds = []", `conf:9: client.kinds: is empty: to use no detours, set subflows = 1`},
		{minimal + "[client]\ncgroup = \"user.slice\"", `conf:9: client.cgroup: must be the absolute path of a cgroup's folder, or "" for all programs, not "user.slice"`},
		{minimal + "[client]\nkinds = [\"converter\"]", `conf:9: client.kinds: "converter" is not a kind of detour`},
		{minimal + "[client.converter]\nuse = \"sometimes\"", `conf:9: client.converter.use: must be "never", "auto" or "always", not "sometimes"`},
		{minimal + "[client.converter]\ntunnel = \"openvpn\"", `conf:9: client.converter.tunnel: must be "" or "wireguard", the only kind of tunnel that encrypts, not "openvpn"`},
		{minimal + "[client]\nkinds = [\"mapped\"]\n[client.converter]\ntunnel = \"wireguard\"", `conf:11: client.converter.tunnel: is "wireguard", and client.kinds has no "wireguard"`},
		{minimal + "[client.converter]\nexclude_ports = [0]", `conf:9: client.converter.exclude_ports: 0 is not a port`},
		{minimal + "[client.converter]\nexclude_domains = [\"*.example.org\"]", `conf:9: client.converter.exclude_domains: "*.example.org" is not a domain`},
		{minimal + "[client.converter]\nproxy = \"1080\"", `conf:9: client.converter.proxy: "1080" is not an address and a port`},
		{minimal + "[client.converter]\nproxy = \"0.0.0.0:1080\"", `conf:9: client.converter.proxy: 0.0.0.0 is not a private address`},
		{minimal + "[client.converter]\ngateway = [\"br/lan\"]", `conf:9: client.converter.gateway: "br/lan" is not an interface's name`},
		{minimal + "[client.converter]\nkeep_ipv6 = true", `conf:9: client.converter.keep_ipv6: concerns the hosts of a LAN`},
		{minimal + "[client.converter]\ncapture = \"all\"", `conf:9: client.converter.capture: must be "none", "host" or the absolute path of a cgroup's folder, not "all"`},
		{minimal + "[client.converter]\nexclude_programs = [\"ssh\"]", `conf:9: client.converter.exclude_programs: "ssh" is not the absolute path of an executable`},
		{minimal + "[client.converter]\ncapture = \"host\"\nexclude_programs = [\"/usr/bin/ssh\"]", `conf:10: client.converter.exclude_programs: holds under dcol run only`},
		{minimal + "[client.converter]\nexclude_cgroups = [\"backup.slice\"]", `conf:9: client.converter.exclude_cgroups: "backup.slice" is not the absolute path of a cgroup's folder`},
		{minimal + incoming("carol", 8080, "127.0.0.1:80"), `client.converter.incoming[0].converter: "carol" is no waypoint of this host`},
		{minimal + incoming("alice", 8080, "127.0.0.1:80"), `client.converter.incoming[0].converter: "alice" is this host itself`},
		{minimal + incoming("Bob", 8080, "127.0.0.1:80"), `client.converter.incoming[0].converter: "Bob" is not a member's name`},
		{minimal + incoming("bob", 0, "127.0.0.1:80"), `client.converter.incoming[0].port: 0 is not a port`},
		{minimal + incoming("bob", 8080, "127.0.0.1"), `client.converter.incoming[0].to`},
		{minimal + incoming("bob", 8080, "127.0.0.1:0"), `client.converter.incoming[0].to: must be the address and the port of a service`},
		{minimal + incoming("bob", 8080, "0.0.0.0:80"), `client.converter.incoming[0].to: must be the address and the port of a service`},
		{minimal + incoming("bob", 8080, "[ff02::1]:80"), `client.converter.incoming[0].to: must be the address and the port of a service`},
		{minimal + "[[client.converter.incoming]]\nconverter = \"bob\"\nport = 8080", `client.converter.incoming[0].to: must be the address and the port of a service`},
		{minimal + incoming("bob", 8080, "127.0.0.1:80") + incoming("bob", 8080, "127.0.0.1:81"), `client.converter.incoming[1].port: 8080 of bob is listed twice`},
		{minimal + manyIncoming(9), `client.converter.incoming[8].converter: bob takes connections at no more than 8 ports for a member`},
		{minimal + manyIncoming(65), `client.converter.incoming: has 65 tables, at most 64 are possible`},
		{minimal + incoming("bob", 8080, "127.0.0.1:80") + "[client.converter]\nincoming_port = 0", `client.converter.incoming_port: 0 is not a port`},
		{minimal + incoming("bob", 8080, "127.0.0.1:80") + "[waypoint]\noffers = [\"converter\"]\nconverter_port = 5125", `client.converter.incoming_port: 5125 is the port of this host's own converter`},
		{minimal + "[waypoint]\nconverter_fast_open = true", `conf:9: waypoint.converter_fast_open: needs "converter" in waypoint.offers`},
		{minimal + "[waypoint]\nconverter_incoming = [\"8080\"]", `conf:9: waypoint.converter_incoming: needs "converter" in waypoint.offers`},
		{minimal + "[waypoint]\nconverter_incoming = [\"http\"]", `conf:9: waypoint.converter_incoming[0]: "http" is not a port or a range of ports`},
		{minimal + "[waypoint]\nconverter_incoming = [8080]", `conf:9: waypoint.converter_incoming`},
		{minimal + "[waypoint]\nconverter_incoming = [\"8000-8064\"]", `conf:9: waypoint.converter_incoming: has 65 ports, at most 64 are possible`},
		{minimal + "[waypoint]\nconverter_incoming = [\"8000-8010\", \"8010\"]", `conf:9: waypoint.converter_incoming: 8000-8010 and 8010 have ports in common`},
		{minimal + "[waypoint]\nconverter_incoming = [\"5120-5130\"]", `conf:9: waypoint.converter_incoming: 5120-5130 has the converter's own port, 5124`},
		{minimal + "[waypoint]\nconverter_port = 0", `conf:9: waypoint.converter_port: 0 is not a port`},
		{minimal + "[waypoint]\noffers = [\"wiregard\"]", `conf:9: waypoint.offers: "wiregard" is not a kind of detour; did you mean "wireguard"?`},
		{minimal + "[waypoint]\noffers = []", `conf:9: waypoint.offers: is empty: to offer nothing, remove the role`},
		{minimal + "[waypoint]\nopenvpn_port = 0", `conf:9: waypoint.openvpn_port: 0 is not a port`},
		{minimal + "[waypoint]\noffers = [\"openvpn\"]\nopenvpn_port = 45672", `waypoint.openvpn_port: 45672 is the sessions' port`},
		{minimal + "[client]\ntls_ports = [70000]", `conf:9: client.tls_ports: 70000 is not a port`},
		{minimal + "[metrics]\nlisten = \"9567\"", `conf:9: metrics.listen: "9567" is not an address to listen on`},
		{minimal + "[client]\nbulk_ports = [0]", `conf:9: client.bulk_ports: 0 is not a port`},
		{minimal + "[client]\nbulk_ports = [22]\nmessage_ports = [22]", `client.message_ports: 22 is in client.bulk_ports, too`},
		{minimal + "[client]\nuse = [\"Bob\"]", `client.use: "Bob" is not a member's name`},
		{minimal + "[client]\navoid = [\"alice\"]", `client.avoid: "alice" is this host itself`},
		{minimal + "[client]\nuse = [\"bob\", \"bob\"]", `client.use: "bob" is listed twice`},
		{minimal + "[client]\nuse = [\"bob\"]\navoid = [\"bob\"]", `client.avoid: "bob" is in client.use, too`},
		{minimal + "[client.budget]\ntotal = \"much\"", `conf:9: client.budget.total: "much" is not an amount such as "500GB"`},
		{minimal + "[client.budget]\nmetered_interfaces = [\"wwan0\"]", `conf:9: client.budget.metered_interfaces: needs client.budget.metered`},
		{minimal + "[client.budget]\nmetered = \"1GB\"", `conf:9: client.budget.metered: needs client.budget.metered_interfaces`},
		{minimal + "[client.budget]\nmetered = \"1GB\"\nmetered_interfaces = [\"a/b\"]", `client.budget.metered_interfaces: "a/b" is not the name of an interface`},
		{minimal + "[client]\nuse_only = true", `client.use_only: needs at least one waypoint in client.use`},
		{minimal + "[client]\nexclude = [\"10.0.0.0\"]", `client.exclude[0]`},
		{minimal + "[client]\ninactivity_timeout = \"1500ms\"", `conf:9: client.inactivity_timeout: must be whole seconds, at most 24h0m0s (0s: the host's), not 1.5s`},
		{minimal + "[client]\ninactivity_timeout = \"25h\"", `client.inactivity_timeout: must be whole seconds`},
		{minimal + "[client]\nmptcpify = \"all\"", `conf:9: client.mptcpify: must be "none", "host" or the absolute path of a cgroup's folder, not "all"`},
		{minimal + "[[client.waypoint]]\nname = \"bob\"", `client.waypoint[0].addresses: is missing`},
		{minimal + "[[client.waypoint]]\nname = \"bob\"\naddresses = [\"127.0.0.1\"]", `127.0.0.1 is not an address at which a waypoint can be reached`},
		{minimal + "[client.waypoint]\nname = \"bob\"", `write [[client.waypoint]]`},
		{minimal + "[session]\nlisten = \"45672\"", `is not an address to listen on`},
		{minimal + "[session]\nlisten = \":0\"", `"0" is not a port`},
		{minimal + "[waypoint]\nbandwidth_per_member = \"fast\"", `"fast" is not a rate such as "10mbit"`},
		{minimal + "[waypoint]\nbandwidth = \"1kbit\"", `conf:9: waypoint.bandwidth: must be at least 8kbit, because TCP does not work below that, not 1kbit`},
		{minimal + "[waypoint]\nbandwidth_per_member = \"200gbit\"", `conf:9: waypoint.bandwidth_per_member: must be at most 100gbit, the kernel's maximum, not 200gbit; for no limit write "unlimited"`},
		{minimal + "[waypoint]\nmonthly_quota = \"much\"", `conf:9: waypoint.monthly_quota: "much" is not an amount such as "500GB"`},
		{minimal + "[waypoint]\nmonthly_quota = 500", `conf:9: waypoint.monthly_quota: must be an amount such as "500GB"`},
		{minimal + "[waypoint]\nhours = [\n \"22:00-07:00\",\n \"satday 10:00-11:00\"]", `waypoint.hours[1]: "satday 10:00-11:00" is not a time of the day`},
		{minimal + "[waypoint]\nhours = [\"10:00-10:00\"]", `conf:9: waypoint.hours[0]: "10:00-10:00" is not of any length (the whole day is 00:00-24:00)`},
		{minimal + "[waypoint]\nhours = \"22:00-07:00\"", `conf:9: waypoint.hours: must be a list of strings, not a string`},
		{minimal + "[waypoint]\nmarks = \"0xff\"", `conf:9: waypoint.marks: must be a whole number, not a string`},
		{minimal + "[waypoint]\nmapping_lifetime = \"1s\"", `must be from 10s to 24h, not 1s`},
		{minimal + "[waypoint]\nlog = \"\"", `waypoint.log: is empty`},
		{minimal + "[waypoint]\nmappings_per_member = 0", `must be at least 1, not 0`},
		{minimal + "[waypoint]\ntunnels_per_member = 0", `tunnels_per_member: must be at least 1, not 0`},
		{ranges(``), `conf:2: tunnel_ranges: is empty: name a block of private addresses`},
		{ranges(`"8.8.8.0/24"`), `conf:2: tunnel_ranges: 8.8.8.0/24 is not private: it must be within 10.0.0.0/8`},
		{ranges(`"0.0.0.0/0"`), `tunnel_ranges: 0.0.0.0/0 is not private`},
		{ranges(`"10.0.0.0/7"`), `tunnel_ranges: 10.0.0.0/7 is not private`},
		{ranges(`"::ffff:10.0.0.0/120"`), `tunnel_ranges`},
		{ranges(`"2001:db8::/32"`), `tunnel_ranges: 2001:db8::/32 is not private`},
		{ranges(`"10.1.2.3/16"`), `tunnel_ranges: 10.1.2.3/16 has bits beyond its length: write 10.1.0.0/16`},
		{ranges(`"192.168.1.0/25"`), `tunnel_ranges: 192.168.1.0/25 is too small: the longest prefix is /24`},
		{ranges(`"fd00::/80"`), `tunnel_ranges: fd00::/80 is too small: the longest prefix is /64`},
		{ranges(`"fd00::/48"`) + "[waypoint]\noffers = [\"openvpn\"]", `tunnel_ranges: has no IPv4 block, which OpenVPN needs`},
		{ranges(`"10.0.0.0/8", "172.16.0.0/12"`), `tunnel_ranges: 172.16.0.0/12 is the second block of its family: name at most one of each`},
		{minimal + "[waypoint]\nconnections_per_member = -1", `must be at least 0 (0: no limit), not -1`},
		{strings.Replace(minimal, `"client", "waypoint"`, `"clent"`, 1), `"clent" is not a role; did you mean "client"?`},
		{strings.Replace(minimal, `"alice"`, `"Alice!"`, 1), `is not a member's name`},
		{strings.Replace(minimal, `key = "a.key"`, "", 1), "identity.key: is missing: name a file that `dcol ca issue` wrote"},
		{"name = ", `conf:1`},
		{coordinating + "[coordinator]\ndir = \"\"", `coordinator.dir: is empty`},
		{coordinating + "[coordinator]\nlisten = \"45672\"", `coordinator.listen: "45672" is not an address to listen on`},
		{coordinating + "[coordinator]\nbus_listen = \":45672\"", `coordinator.bus_listen: 45672 is also the port of coordinator.listen: choose another`},
		{coordinating + "[coordinator]\naddresses = []", `coordinator.addresses: is missing`},
		{coordinating + "[coordinator]\naddresses = [\"192.0.2.1\"]", `collective.coordinators: is missing`},
		{minimal + "[[policy]]\nuse = \"full-mesh\"", `policy[0].use: "full-mesh" is not a policy; did you mean "fullmesh"?`},
		{minimal + "[[policy]]\nuse = \"backup\"\ncgroup = \"phone\"", `policy[0].cgroup: must be the absolute path of a cgroup's folder`},
		{minimal + "[[policy]]\nuse = \"backup\"\nports = [70000]", `policy[0].ports: 70000 is not a port`},
		{minimal + "[[policy]]\nuse = \"backup\"\nnetworks = [\"10.1.2.3/8\"]", `policy[0].networks: 10.1.2.3/8 has bits beyond its length`},
		{minimal + "[[policy]]\nuse = \"fullmesh\"\nsubflows = 9", `policy[0].subflows: must be from 1 to 8 (0: the default), not 9`},
		{minimal + "[[policy]]\nuse = \"backup\"\nabove_rtt = \"1m\"", `policy[0].above_rtt: must be at most 10s (0s: none), not 1m0s`},
		{minimal + "[[policy]]\nuse = \"backup\"\nabove_rtt = \"-1s\"", `policy[0].above_rtt`},
		{minimal + "[[policy]]\nuse = \"backup\"\nserver = \"hub@192.0.2.1:45674\"", `policy[0].server: is for paths and detours, not for backup: remove it`},
		{minimal + "[[policy]]\nuse = \"paths\"\nserver = \"192.0.2.1:45674\"", `policy[0].server: "192.0.2.1:45674" is not NAME@HOST:PORT`},
		{minimal + "[[policy]]\nuse = \"ndiffports\"", `policy[0].subflows: must be from 2 to 8 for ndiffports, not 0`},
		{minimal + "[[policy]]\nuse = \"single\"\nsubflows = 2", `policy[0].subflows: remove it: with single there is one subflow at a time`},
		{minimal + "[[policy]]\nuse = \"backup\"\nuplinks = [\"a\", \"a\"]", `policy[0].uplinks: "a" is empty or listed twice: list each interface once`},
		{minimal + "[[policy]]\nuse = \"detours\"\nuplinks = [\"a\"]", `policy[0].use: uplinks are for fullmesh, backup and single, not for detours`},
		{minimal + "[[policy]]\nuse = \"paths\"\nuplinks = [\"a\"]", `policy[0].use: uplinks are for fullmesh, backup and single, not for paths`},
		{minimal + "[[policy]]\nuse = \"ndiffports\"\nsubflows = 2\ndetours = true", `policy[0].use: detours besides are for fullmesh, backup, single and paths, not for ndiffports`},
		{minimal + "[[policy]]\nuse = \"backup\"\nquota = { a = \"0B\" }", `policy[0].quota.a: "0B" is zero: write a size`},
		{minimal + "[[policy]]\nuse = \"backup\"\nquota = { a = \"some\" }", `policy[0].quota.a: "some" is not a size`},
		{minimal + "[[policy]]\nuse = \"backup\"\nquota_every = \"24h\"", `policy[0].quota_every: needs quotas`},
		{minimal + "[[policy]]\nuse = \"backup\"\nbelow = \"fast\"", `policy[0].below`},
		{minimal + "[[policy]]\nuse = \"detours\"\ntraffic = \"message\"", `policy[0].traffic: "message" is not a kind of traffic; did you mean "messages"?: it must be`},
		{minimal + "[[policy]]\nuse = \"backup\"\nlimit = { a = \"slow\" }", `policy[0].limit.a: "slow" is not a rate`},
		{minimal + "[[policy]]\nuse = \"backup\"\nlimit = { a = \"-1mbit\" }", `policy[0].limit.a: "-1mbit" is not a rate`},
		{minimal + "[[policy]]\nuse = \"backup\"\nlimit = { a = \"1bit\" }", `policy[0].limit.a: must be at least 8kbit, because TCP does not work below that, not 1bit; to use no subflows on the path, write "0"`},
		{minimal + "[[policy]]\nuse = \"backup\"\nquota = { a = \"1MB\" }\nnear_quota = \"7999bit\"", `policy[0].near_quota: must be at least 8kbit, because TCP does not work below that, not 7999bit; to use no subflows on the path, write "0"`},
		{minimal + "[[policy]]\nuse = \"backup\"\nlimit = { \"\" = \"1mbit\" }", `policy[0].limit: needs the name of an interface`},
		{minimal + "[[policy]]\nuse = \"backup\"\nannounce = true\nrefuse_joins = true", `policy[0].announce: remove it, or refuse_joins`},
		{minimal + "[[policy]]\nuse = \"backup\"\nnear_quota = \"1mbit\"", `policy[0].near_quota: needs quotas`},
		{minimal + "[[policy]]\nuse = \"backup\"\nuser_timeout = \"10ms\"", `policy[0].user_timeout: must be from 1s to 1h0m0s (0s: the kernel's), not 10ms`},
		{strings.Replace(minimal, "client", "waypoint", 1) + "[[policy]]\nuse = \"backup\"", `policy: needs the role "client"`},
		{minimal + "[[congestion]]\nports = [80]", `congestion[0].use: must be "lia", "olia", "balia", "wvegas" or one of the kernel's`},
		{minimal + "[[congestion]]\nuse = \"LIA\"", `congestion[0].use: must be "lia"`},
		{minimal + "[[congestion]]\nuse = \"a_name_that_is_too_long\"", `congestion[0].use: must be "lia"`},
		{minimal + "[[congestion]]\nuse = \"lia\"\ncgroup = \"user.slice\"", `congestion[0].cgroup: must be the absolute path of a cgroup's folder`},
		{minimal + "[[congestion]]\nuse = \"lia\"\nports = [0]", `congestion[0].ports: 0 is not a port`},
		{minimal + "[[congestion]]\nuse = \"lia\"\nnetworks = [\"10.1.2.3/8\"]", `congestion[0].networks: 10.1.2.3/8 has bits beyond its length: write 10.0.0.0/8`},
		{minimal + "[[congestion]]\nuse = \"lia\"\nports = [1,2,3,4,5,6,7,8,9]\nnetworks = [\"10.0.0.0/16\",\"10.1.0.0/16\",\"10.2.0.0/16\",\"10.3.0.0/16\",\"10.4.0.0/16\",\"10.5.0.0/16\",\"10.6.0.0/16\",\"10.7.0.0/16\"]", `congestion[0]: has 72 combinations of ports and networks: at most 64`},
		{minimal + "[options]\nnetworks = [\"10.1.2.3/8\"]", `conf:9: options.networks: 10.1.2.3/8 has bits beyond its length`},
		{minimal + "[options.ask]\nuser_timeout = \"10ms\"", `conf:9: options.ask.user_timeout: must be from 1s to 546h7m0s (0s: it is not asked for), not 10ms`},
		{minimal + "[options.ask]\ncongestion = \"cubik\"", `conf:9: options.ask.congestion: "cubik" has no number in the option; did you mean "cubic"?`},
		{minimal + "[options.ask]\ninitial_window = 65535", `conf:9: options.ask.initial_window: must be from 1 to 1000 segments (0: it is not asked for), not 65535`},
		{minimal + "[options.ask]\nack_delay = 900\nack_segments = 2", `conf:9: options.ask.ack_delay: must be from 2 to 398 percent (0: it is not asked for), not 900`},
		{minimal + "[options.ask]\nack_segments = 2", `conf:9: options.ask.ack_segments: must be from 1 to 255 with ack_delay, and 0 without, not 2`},
		{minimal + "[options.accept]\nuser_timeout_max = \"1s\"", `conf:9: options.accept.user_timeout_max: must be from user_timeout_min, which is at least 1s, to 546h7m0s, not 1s`},
		{minimal + "[options.accept]\ncongestion = [\"fast\"]", `conf:9: options.accept.congestion: "fast" has no number in the option`},
		{minimal + "[options.accept]\ninitial_window = 40", `conf:9: options.accept.initial_window: needs networks in trusted`},
		{minimal + "[options.accept]\ntrusted = [\"10.0.0.0/8\"]", `options.accept.initial_window: needs networks in trusted`},
		{minimal + "[options.ask]\nrate = \"1bit\"", `conf:9: options.ask.rate: must be from 8kbit to 524280kbit, or "unlimited" (none), not 1bit`},
		{minimal + "[options.accept]\nrate_min = \"1bit\"", `conf:9: options.accept.rate_min: must be from 8kbit to 524280kbit, or "unlimited" (none), not 1bit`},
		{minimal + "[options.ask]\nrate = \"1gbit\"", `conf:9: options.ask.rate: must be from 8kbit to 524280kbit, or "unlimited" (none), not 1gbit`},
		{minimal + "[congestion]\nuse = \"lia\"", `write [[congestion]]`},
		{minimal + "[collective]\ncoordinators = [\"hub\"]", `conf:9: collective.coordinators[0]: "hub" is not NAME@HOST:PORT`},
		{minimal + "[collective]\ncoordinators = [\"Hub@192.0.2.1:45672\"]", `"Hub" is not a member's name`},
		{minimal + "[collective]\ncoordinators = [\"hub@192.0.2.1:0\"]", `"0" is not a port`},
		{minimal + "[collective]\ncoordinators = [\"hub@192.0.2.1:45672\"]", `identity.crl: is missing`},
		{minimal + "[collective]\nwaypoints = 99", `conf:9: collective.waypoints: must be from 0 to 32 (0: only those in this file), not 99`},
		{minimal + "[collective]\nregion = \"Far East\"", `conf:9: collective.region: must be a word of at most 32 characters a-z, 0-9 and '-', not "Far East"`},
		{minimal + "[collective]\naddresses = [\"127.0.0.1\"]", `127.0.0.1 is not an address at which a waypoint can be reached`},
	} {
		_, err := Parse("conf", []byte(test.file))
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s\ngave %v\nwant an error with %q", test.file, err, test.want)
		}
	}
}

func TestAllProblemsAtOnce(t *testing.T) {
	_, err := Parse("conf", []byte("nam = \"a\"\nroles = [\"client\"]\n[clint]\n"))
	if err == nil || strings.Count(err.Error(), "\n") != 1 {
		t.Errorf("want both problems, got: %v", err)
	}
}

func TestMissingFileNamesTheFix(t *testing.T) {
	_, err := Load(filepath.Join(t.TempDir(), "none.toml"))
	if err == nil || !strings.Contains(err.Error(), "dcol agent --sample") {
		t.Errorf("got %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(Sample))
	f.Add([]byte(minimal))
	f.Fuzz(func(t *testing.T, data []byte) {
		if c, err := Parse("fuzz", data); err == nil && c.Name == "" {
			t.Error("accepted a configuration without a name")
		}
	})
}

func TestMemberTerms(t *testing.T) {
	c := parse(t, minimal+"[[waypoint.member]]\nname = \"carol\"\nonly = [\"198.51.100.0/24\"]\nports = [443]\nhours = [\"22:00-07:00\"]\nmonthly_quota = \"50GB\"")
	if m := c.Waypoint.Members; len(m) != 1 || m[0].Name != "carol" || m[0].MonthlyQuota != 50e9 || len(m[0].Only) != 1 || len(m[0].Hours) != 1 {
		t.Errorf("%+v", m)
	}
	const waypoint = "name = \"bob\"\nroles = [\"waypoint\"]\n"
	for text, want := range map[string]string{
		"[[waypoint.member]]\nname = \"\"":                                     "is not a member's name",
		"[[waypoint.member]]\nname = \"x\"\nports = [0]":                       "waypoint.member[0].ports",
		"[[waypoint.member]]\nname = \"x\"\n[[waypoint.member]]\nname = \"x\"": "listed twice",
		"[[waypoint.member]]\nname = \"x\"\nonly = [\"198.51.100.0\"]":         "only",
		"[[waypoint.member]]\nname = \"x\"\nhours = [\"25:00-26:00\"]":         "hours",
		"[[waypoint.member]]\nname = \"x\"\nmonthly_quotas = \"1GB\"":          "monthly_quota",
		"[[waypoint.member]]\nname = \"x\"\nmonthly_quota = \"much\"":          "monthly_quota",
	} {
		if _, err := Parse("dcol.toml", []byte(waypoint+text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\ngot %v, want %s", text, err, want)
		}
	}
}
