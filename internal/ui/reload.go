package ui

import (
	"io"

	"github.com/detour-collective/dcol/internal/api"
)

// Reloaded writes what has changed because the agent read its configuration again.
func Reloaded(w io.Writer, r api.Reloaded) error {
	p := &printer{w: w}
	p.changes("in effect now:", r.Applied)
	p.changes("in effect after a restart of the agent:", r.Waiting)
	if len(r.Applied)+len(r.Waiting) == 0 {
		p.linef("%s: nothing has changed", r.File)
	}
	return p.err
}

// Pending writes how the configuration file differs from the configuration in use.
func Pending(w io.Writer, r api.Reloaded) error {
	p := &printer{w: w}
	p.changes("dcol reload takes over:", r.Applied)
	p.changes("in effect after a restart of the agent:", r.Waiting)
	return p.err
}

func (p *printer) changes(title string, list []api.SettingChange) {
	if len(list) == 0 {
		return
	}
	p.linef("%s", title)
	for _, c := range list {
		only := ""
		if c.NewOnly {
			only = ", for new connections only"
		}
		p.linef("  %s: %s -> %s%s", c.Key, c.From, c.To, only)
	}
}
