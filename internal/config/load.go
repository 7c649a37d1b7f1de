package config

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"time"

	"github.com/detour-collective/dcol/internal/tomlfile"
	"github.com/detour-collective/dcol/internal/units"
)

// Load reads the file at path. The error lists every problem with its line.
func Load(path string) (*Config, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, noFile(path)
	}
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	return Parse(path, data)
}

// noFile is the error about a file that does not exist.
func noFile(path string) error {
	return fmt.Errorf("there is no configuration at %s; `dcol agent --sample` prints one to start from: %w", path, fs.ErrNotExist)
}

// LoadOrDefault is like Load, but returns the defaults if there is no file, because cleaning up must work without a
// configuration.
func LoadOrDefault(path string) (*Config, error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return defaults(), nil
	}
	return Load(path)
}

// Parse parses a configuration. name is the file's name in errors.
func Parse(name string, data []byte) (*Config, error) {
	c, err := decode(name, data)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// decode is like Parse, but returns the configuration also if it is wrong, as far as it was understood. Without a name,
// errors tell no place.
func decode(name string, data []byte) (*Config, error) {
	c := defaults()
	p := tomlfile.Decode(name, data, c)
	if p.Err() == nil {
		c.fill()
		c.check(p)
	}
	return c, p.Err()
}

// defaults returns the values of absent keys. A key that is present replaces its default, even with
// an empty list.
func defaults() *Config {
	return &Config{
		LogLevel: "info",
		RunDir:   DefaultRunDir,
		StateDir: defaultStateDir,
		// A part of 10/8 that home routers, clouds and containers seldom use, and a /48 of unique
		// local addresses with "dcol" in ASCII.
		TunnelRanges: prefixes("10.192.0.0/11", "fd64:636f:6c00::/48"),
		History:      History{Keep: true},
		Trace:        Trace{Rate: 20, Destinations: 1000},
		Session:      Session{Listen: ":45672"},
		Client: Client{
			Subflows:  2,
			Kinds:     kinds,
			Selection: SelectWorth,
			Mptcpify:  MptcpifyNone,
			// HTTPS, and the other registered ports of protocols that begin with a TLS handshake.
			TLSPorts: []int{443, 465, 563, 636, 853, 989, 990, 992, 993, 994, 995, 5061, 8443},
			// A waypoint could not reach these for us, and would learn which ones we use.
			Exclude:   prefixes("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"),
			Converter: Convert{Use: ConvertNever, Capture: CaptureNone, IncomingPort: 5125},

			PublishMeasurements: true,
		},
		Options:     Options{Accept: AcceptOptions{UserTimeoutMin: units.Duration(10 * time.Second)}},
		Collective:  Collective{Waypoints: 4},
		Router:      Router{Radix: 16, Cipher: "speck32", SecretFile: "/etc/dcol/cflb-secret"},
		Coordinator: Coordinator{Dir: "/var/lib/dcol/coordinator", Listen: ":45672", BusListen: ":45673"},
		Waypoint: Waypoint{
			Offers:               []Kind{InBand, Mapped},
			InBandAuthenticator:  true,
			FastPath:             true,
			OpenVPNPort:          1194,
			ConverterPort:        5124, // RFC 8803 names no port
			PortMapping:          true,
			DenyPorts:            []int{25},
			MappingsPerMember:    4096,
			ConnectionsPerMember: 4096,
			TunnelsPerMember:     8,
			ConnectionsPerSecond: 50,
			RequestsPerSecond:    500,
			Marks:                0xff0000ff,
			MappingLifetime:      units.Duration(10 * time.Minute),
			Log:                  "/var/log/dcol/attribution.jsonl",
		},
	}
}

func (c *Config) fill() {
	for i := range c.Client.Waypoints {
		if c.Client.Waypoints[i].Port == 0 {
			c.Client.Waypoints[i].Port = 45672
		}
	}
}

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}
