package bus

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
)

// serverLog writes nats-server's log to ours. A fatal error does not end the process but is sent to a channel.
type serverLog struct {
	log    *slog.Logger
	failed chan<- string
}

// intended is part of a warning that nats-server logs at every start, about a setting that we want.
const intended = "Clients that are not using \"TLS Handshake First\" option"

// ofClient occurs in lines about one connection. Strangers can cause any number of them.
const ofClient = " - cid:"

func (l *serverLog) write(level slog.Level, format string, args []any) string {
	text := fmt.Sprintf(format, args...)
	if strings.Contains(text, ofClient) || strings.HasPrefix(text, intended) {
		level = slog.LevelDebug
	}
	l.log.Log(context.Background(), level, "bus: nats-server", "says", strings.TrimSpace(text))
	return text
}

func (l *serverLog) Noticef(format string, v ...any) { l.write(slog.LevelDebug, format, v) }
func (l *serverLog) Warnf(format string, v ...any)   { l.write(slog.LevelWarn, format, v) }
func (l *serverLog) Errorf(format string, v ...any)  { l.write(slog.LevelError, format, v) }
func (l *serverLog) Debugf(format string, v ...any)  { l.write(slog.LevelDebug, format, v) }
func (l *serverLog) Tracef(format string, v ...any)  { l.write(slog.LevelDebug, format, v) }

func (l *serverLog) Fatalf(format string, v ...any) {
	text := l.write(slog.LevelError, format, v)
	select {
	case l.failed <- text:
	default: // an earlier error is still in the channel
	}
}
