package crew

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
)

// Agent describes the configuration of an agent, by the keys of its file. Missing keys have the agent's defaults.
type Agent struct {
	// Coordinator is the coordinator of the collective that the agent has joined, in the form of the function
	// Coordinator. If empty, Issue made the agent's identity.
	Coordinator string
	// Client, Waypoint and Coordinate are the settings of roles. The agent has the roles whose settings are not nil.
	Client, Waypoint, Coordinate Settings
	// Collective are more settings of its membership in a coordinator's collective.
	Collective Settings
	// Over overrides all other settings.
	Over Settings
}

// Settings are keys of a configuration file with their values.
type Settings = map[string]any

// Waypoint names a waypoint in a client's settings.
type Waypoint struct {
	Name      string       `toml:"name"`
	Addresses []netip.Addr `toml:"addresses"`
}

// TOML returns the configuration file of a member.
func (a Agent) TOML(name string) ([]byte, error) {
	id := FilesIn(IdentityDir(a.Coordinator != ""))
	file := Settings{
		"name": name, "roles": []config.Role{},
		"identity": Settings{"certificate": id.Certificate, "key": id.Key, "ca": id.CA, "crl": id.CRL},
	}
	for _, role := range []struct {
		name     config.Role
		settings Settings
	}{{config.RoleClient, a.Client}, {config.RoleWaypoint, a.Waypoint}, {config.RoleCoordinator, a.Coordinate}} {
		if role.settings != nil {
			file["roles"] = append(file["roles"].([]config.Role), role.name)
			file[string(role.name)] = role.settings
		}
	}
	if a.Coordinator != "" {
		file["collective"] = Overlay(Settings{"coordinators": []string{a.Coordinator}}, a.Collective)
	}
	data, err := toml.Marshal(Overlay(file, a.Over))
	if err != nil {
		return nil, fmt.Errorf("write the agent's configuration of %s: %w", name, err)
	}
	return data, nil
}

// Overlay returns base with the settings of over, merged table by table.
func Overlay(base, over Settings) Settings {
	out := Settings{}
	maps.Copy(out, base)
	for key, value := range over {
		table, isTable := value.(Settings)
		if below, ok := out[key].(Settings); ok && isTable {
			out[key] = Overlay(below, table)
			continue
		}
		out[key] = value
	}
	return out
}

// Configure writes the configuration of a host's agent.
func (c Crew) Configure(host string, a Agent) error {
	data, err := a.TOML(host)
	if err != nil {
		return err
	}
	return c.Host(host).WriteFile(config.DefaultPath, data, 0o644)
}

// AnyKind stands for every kind of detour in Ready.
const AnyKind = ""

// Ready returns nil if a client has sessions with the named waypoints, and each of the kinds of detours is ready
// through each of them.
func Ready(s api.Status, waypoints []string, kinds ...string) error {
	if len(waypoints) > 0 && s.Client == nil {
		return errors.New("the agent has no client role")
	}
	for _, name := range waypoints {
		known := false
		for _, w := range s.Client.Waypoints {
			if w.Name != name {
				continue
			}
			known = true
			if w.State != api.WaypointUp {
				return errors.New(strings.TrimSuffix(fmt.Sprintf("waypoint %s is %s: %s", w.Name, w.State, w.Why), ": "))
			}
		}
		if !known {
			return fmt.Errorf("waypoint %s is not known yet", name)
		}
		for _, kind := range kinds {
			if err := kindReady(s.Client.Waypoints, name, kind); err != nil {
				return err
			}
		}
	}
	return nil
}

// ConverterReady returns nil if a client is admitted to the named converters and its relay runs. With proxy, the relay
// must have a proxy.
func ConverterReady(s api.Status, converters []string, proxy bool) error {
	if s.Client == nil {
		return errors.New("the agent has no client role")
	}
	for _, name := range converters {
		admitted := func(c api.Converter) bool { return c.Name == name }
		if !slices.ContainsFunc(s.Client.Converting.Converters, admitted) {
			return fmt.Errorf("not admitted to the converter of %s", name)
		}
	}
	if s.Relay == nil {
		return errors.New("the agent has no relay to converters")
	}
	if !proxy {
		return nil
	}
	for _, part := range s.Relay.Parts {
		if part.Name == "proxy" && part.Listen != "" {
			return nil
		}
		if part.Name == "proxy" && part.Problem != "" {
			return fmt.Errorf("the proxy does not listen: %s", part.Problem)
		}
	}
	return errors.New("the proxy does not listen yet")
}

// GatewayReady returns nil if the kernel of a gateway leads connections to the relay.
func (c Crew) GatewayReady(ctx context.Context, host string, s api.Status) error {
	rules, err := c.Run(ctx, host, "nft", "list", "chain", "inet", "dcol_gateway", "divert")
	if err != nil {
		return fmt.Errorf("connections are not led to the relay yet: %w", err)
	}
	for _, part := range s.Relay.Parts {
		if part.Name == "gateway, IPv4" && part.Listen != "" && strings.Contains(string(rules), part.Listen) {
			return nil
		}
	}
	return errors.New("connections are not led to the relay yet")
}

// kindReady checks a kind at one waypoint. One address of the waypoint is enough: in-band detours are for IPv4
// only, and a tunnel leads to one address.
func kindReady(all []api.Waypoint, name, kind string) error {
	state, why := api.KindState("unknown"), "its agent says nothing of it"
	for _, w := range all {
		for _, k := range w.Kinds {
			if w.Name != name || k.Kind != kind && kind != AnyKind {
				continue
			}
			if k.State == api.KindReady {
				return nil
			}
			if state == "unknown" || k.Why != "" {
				state, why = k.State, k.Why
			}
		}
	}
	what := strings.TrimSpace(kind + " detour")
	return errors.New(strings.TrimSuffix(fmt.Sprintf("no %s through waypoint %s: it is %s: %s", what, name, state, why), ": "))
}
