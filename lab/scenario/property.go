package scenario

import (
	"encoding"
	"fmt"
	"strconv"

	"github.com/detour-collective/dcol/internal/tomlfile"
	"github.com/detour-collective/dcol/internal/units"
)

// property is a property of a link that Params has, by its key.
type property struct {
	key  string
	unit string // the unit of the value in plots
	// read sets the property from text and returns its value.
	read func(p *Params, text string) (value float64, err error)
}

var properties = []property{
	{"rate", "Mbit/s", func(p *Params, text string) (float64, error) {
		v, err := read[units.Rate](&p.Rate, text)
		return v.Mbps(), err
	}},
	{"delay", "ms", duration(func(p *Params) **units.Duration { return &p.Delay })},
	{"jitter", "ms", duration(func(p *Params) **units.Duration { return &p.Jitter })},
	{"loss", "%", share(func(p *Params) **units.Share { return &p.Loss })},
	{"queue", "KB", func(p *Params, text string) (float64, error) {
		q, err := read[Queue](&p.Queue, text)
		if q.Packets > 0 {
			return float64(q.Packets), err
		}
		return float64(q.Bytes) / 1e3, err
	}},
	{"burst", "%", share(func(p *Params) **units.Share { return &p.Burst })},
	{"burst_length", "packets", func(p *Params, text string) (float64, error) {
		n, err := strconv.Atoi(text)
		if err != nil {
			return 0, fmt.Errorf("%q is not a whole number", text)
		}
		p.BurstLength = &n
		return float64(n), nil
	}},
	{"burst_loss", "%", share(func(p *Params) **units.Share { return &p.BurstLoss })},
	{"reorder", "%", share(func(p *Params) **units.Share { return &p.Reorder })},
	{"reorder_by", "ms", duration(func(p *Params) **units.Duration { return &p.ReorderBy })},
	{"duplicate", "%", share(func(p *Params) **units.Share { return &p.Duplicate })},
	{"corrupt", "%", share(func(p *Params) **units.Share { return &p.Corrupt })},
	{"tamper", "%", share(func(p *Params) **units.Share { return &p.Tamper })},
}

// read sets a property whose type parses its own notation.
func read[T any, P interface {
	*T
	encoding.TextUnmarshaler
}](into **T, text string) (value T, err error) {
	*into = new(T)
	err = P(*into).UnmarshalText([]byte(text))
	return **into, err
}

func duration(of func(*Params) **units.Duration) func(*Params, string) (float64, error) {
	return func(p *Params, text string) (float64, error) {
		into := of(p)
		_, err := read[units.Duration](into, text)
		return 1e3 * (*into).Seconds(), err
	}
}

func share(of func(*Params) **units.Share) func(*Params, string) (float64, error) {
	return func(p *Params, text string) (float64, error) {
		into := of(p)
		_, err := read[units.Share](into, text)
		return 100 * float64(**into), err
	}
}

// PropertyKeys lists the keys of a link's properties.
func PropertyKeys() []string {
	keys := make([]string, len(properties))
	for i, p := range properties {
		keys[i] = p.key
	}
	return keys
}

// Set reads the value of a property, as it is written in a file.
func (p *Params) Set(key, text string) error {
	for _, property := range properties {
		if property.key == key {
			if _, err := property.read(p, text); err != nil {
				return fmt.Errorf("%s: %w", key, err)
			}
			return nil
		}
	}
	return fmt.Errorf("unknown key %q%s", key, tomlfile.Nearest(key, PropertyKeys()))
}
