package agent

import (
	"context"
	"log/slog"
	"strings"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/loglevel"
)

// LogLevel implements api.Agent. Nothing changes if a part of the request is wrong.
func (a *running) LogLevel(_ context.Context, r api.LogLevelRequest) (api.LogLevels, error) {
	levels := a.plan.levels
	before, known := levels.State()
	wanted := make(map[string]slog.Level, len(r.Subsystems))
	for name, word := range r.Subsystems {
		level, err := loglevel.Parse(word)
		if err != nil {
			return api.LogLevels{}, err
		}
		if _, ok := known[name]; !ok {
			return api.LogLevels{}, levels.Set(name, level) // the error names those that exist
		}
		wanted[name] = level
	}
	all := before
	if r.All != "" {
		var err error
		if all, err = loglevel.Parse(r.All); err != nil {
			return api.LogLevels{}, err
		}
		levels.SetAll(all)
	}
	for name, level := range wanted {
		if err := levels.Set(name, level); err != nil {
			return api.LogLevels{}, err
		}
	}
	_, now := levels.State()
	out := api.LogLevels{All: word(all), Subsystems: make(map[string]string, len(now))}
	for name, level := range now {
		out.Subsystems[name] = word(level)
	}
	return out, nil
}

func word(l slog.Level) string { return strings.ToLower(l.String()) }
