package config

import (
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Setting is a key of the file with its value. A table that may be repeated, such as client.waypoint, is one key.
type Setting struct {
	Key   string // such as "client.subflows"
	Value string // in TOML
	// Reload reports whether a running agent can take over a new value.
	Reload bool

	text           bool // a string
	texts, numbers bool // a list of strings, and of numbers
	repeated       bool
}

// list reports whether the value is a list of strings or numbers.
func (s Setting) list() bool { return s.texts || s.numbers }

// Raw returns the value without the quotes of a string.
func (s Setting) Raw() string {
	if s.text {
		if raw, err := strconv.Unquote(s.Value); err == nil {
			return raw
		}
	}
	return s.Value
}

// Change is a key whose value differs between two configurations.
type Change struct {
	Key, From, To string
	Reload        bool // see Setting
	// NewOnly reports whether a running agent applies the new value to new connections only.
	NewOnly bool
}

// reloaded lists the keys whose values a running agent takes over.
var reloaded = []string{
	"log_level",
	"client.subflows", "client.bulk_ports", "client.message_ports", "client.tls_ports", "client.exclude",
	"client.use", "client.use_only", "client.avoid", "client.publish_measurements", "client.waypoint", "client.converter.use",
	"client.converter.exclude", "client.converter.exclude_ports", "client.converter.exclude_domains",
	"client.converter.exclude_programs", "client.converter.exclude_cgroups",
	"waypoint.allow", "waypoint.deny", "waypoint.deny_ports", "waypoint.hours", "waypoint.member",
}

// newOnly lists those of them whose values decide when a connection begins.
var newOnly = []string{
	"client.bulk_ports", "client.message_ports", "client.tls_ports", "client.exclude",
	"client.converter.exclude", "client.converter.exclude_ports", "client.converter.exclude_domains",
	"client.converter.exclude_programs", "client.converter.exclude_cgroups",
}

// Settings returns all keys in the order of Config's fields.
func (c *Config) Settings() []Setting { return settingsOf("", reflect.ValueOf(c).Elem()) }

// Defaults returns the values of absent keys.
func Defaults() []Setting { return defaults().Settings() }

// Differences returns the keys whose values differ from those of next.
func (c *Config) Differences(next *Config) (list []Change) {
	after := next.Settings()
	for i, s := range c.Settings() {
		if to := after[i].Value; to != s.Value {
			list = append(list, Change{Key: s.Key, From: s.Value, To: to, Reload: s.Reload, NewOnly: slices.Contains(newOnly, s.Key)})
		}
	}
	return list
}

// Reloaded returns a copy of c with next's values for the keys that a running agent takes over.
func (c *Config) Reloaded(next *Config) *Config {
	out := *c
	out.LogLevel = next.LogLevel
	to, from := &out.Client, next.Client
	to.Subflows, to.BulkPorts, to.MessagePorts, to.TLSPorts, to.Exclude = from.Subflows, from.BulkPorts, from.MessagePorts, from.TLSPorts, from.Exclude
	to.Use, to.UseOnly, to.Avoid, to.Waypoints, to.Converter.Use = from.Use, from.UseOnly, from.Avoid, from.Waypoints, from.Converter.Use
	to.PublishMeasurements = from.PublishMeasurements
	convert := &to.Converter
	convert.Exclude, convert.ExcludePorts, convert.ExcludeDomains = from.Converter.Exclude, from.Converter.ExcludePorts, from.Converter.ExcludeDomains
	convert.ExcludePrograms, convert.ExcludeCgroups = from.Converter.ExcludePrograms, from.Converter.ExcludeCgroups
	out.Waypoint.Allow, out.Waypoint.Deny = next.Waypoint.Allow, next.Waypoint.Deny
	out.Waypoint.DenyPorts, out.Waypoint.Hours = next.Waypoint.DenyPorts, next.Waypoint.Hours
	out.Waypoint.Members = next.Waypoint.Members
	return &out
}

func settingsOf(prefix string, v reflect.Value) (list []Setting) {
	for i := range v.NumField() {
		name := v.Type().Field(i).Tag.Get("toml")
		if name == "-" {
			continue
		}
		field, key := v.Field(i), prefix+name
		if field.Kind() == reflect.Struct && !isText(field) {
			list = append(list, settingsOf(key+".", field)...)
			continue
		}
		s := Setting{Key: key, Value: inTOML(field), Reload: slices.Contains(reloaded, key), text: isString(field)}
		if field.Kind() == reflect.Slice && !s.text {
			item := reflect.Zero(field.Type().Elem())
			s.texts = isString(item)
			s.numbers = item.Kind() == reflect.Int && !s.texts
			s.repeated = item.Kind() == reflect.Struct && !s.texts
		}
		list = append(list, s)
	}
	return list
}

// isString reports whether a value is a string in TOML.
func isString(v reflect.Value) bool { return isText(v) || v.Kind() == reflect.String }

func isText(v reflect.Value) bool {
	_, ok := v.Interface().(encoding.TextMarshaler)
	return ok
}

// inTOML returns a value in TOML. Its type must be one that Config has.
func inTOML(v reflect.Value) string {
	if text, ok := v.Interface().(encoding.TextMarshaler); ok {
		out, err := text.MarshalText()
		if err != nil {
			return err.Error() // does not happen with types of Config
		}
		return strconv.Quote(string(out))
	}
	switch v.Kind() {
	case reflect.String:
		return strconv.Quote(v.String())
	case reflect.Uint32: // bits
		return fmt.Sprintf("0x%x", v.Uint())
	case reflect.Slice:
		items := make([]string, v.Len())
		for i := range items {
			items[i] = inTOML(v.Index(i))
		}
		return "[" + strings.Join(items, ", ") + "]"
	case reflect.Struct:
		var items []string
		for _, s := range settingsOf("", v) {
			items = append(items, s.Key+" = "+s.Value)
		}
		return "{ " + strings.Join(items, ", ") + " }"
	}
	return fmt.Sprint(v.Interface())
}
