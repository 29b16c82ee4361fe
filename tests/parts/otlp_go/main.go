// The stock exporters of OpenTelemetry's Go SDK: sends one request of each signal with all types of attributes. It knows
// nothing of Frazil.
//
//	otlp-go grpc|http HOST:PORT [gzip] [HEADER=VALUE ...]
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploggrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploghttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/log"
	"go.opentelemetry.io/otel/metric"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

var attributes = []attribute.KeyValue{
	attribute.String("text", "tea 🍵"),
	attribute.String("empty", ""),
	attribute.Int64("large", 1<<63-1),
	attribute.Float64("fraction", 0.1),
	attribute.Bool("flag", true),
	attribute.StringSlice("texts", []string{"a", "", "b"}),
	attribute.Int64Slice("numbers", []int64{1, 2}),
	attribute.Float64Slice("fractions", []float64{0.5}),
	attribute.BoolSlice("flags", []bool{true, false}),
}

var start = time.Unix(1_700_000_000, 123_456_789)

type sender struct {
	kind, address string
	gzip          bool
	headers       map[string]string
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func (s sender) spans(ctx context.Context) (*otlptrace.Exporter, error) {
	if s.kind == "http" {
		compression := otlptracehttp.NoCompression
		if s.gzip {
			compression = otlptracehttp.GzipCompression
		}
		return otlptracehttp.New(ctx, otlptracehttp.WithEndpoint(s.address), otlptracehttp.WithInsecure(),
			otlptracehttp.WithHeaders(s.headers), otlptracehttp.WithCompression(compression))
	}
	options := []otlptracegrpc.Option{otlptracegrpc.WithEndpoint(s.address), otlptracegrpc.WithInsecure(),
		otlptracegrpc.WithHeaders(s.headers)}
	if s.gzip {
		options = append(options, otlptracegrpc.WithCompressor("gzip"))
	}
	return otlptracegrpc.New(ctx, options...)
}

func (s sender) records(ctx context.Context) (sdklog.Exporter, error) {
	if s.kind == "http" {
		compression := otlploghttp.NoCompression
		if s.gzip {
			compression = otlploghttp.GzipCompression
		}
		return otlploghttp.New(ctx, otlploghttp.WithEndpoint(s.address), otlploghttp.WithInsecure(),
			otlploghttp.WithHeaders(s.headers), otlploghttp.WithCompression(compression))
	}
	options := []otlploggrpc.Option{otlploggrpc.WithEndpoint(s.address), otlploggrpc.WithInsecure(),
		otlploggrpc.WithHeaders(s.headers)}
	if s.gzip {
		options = append(options, otlploggrpc.WithCompressor("gzip"))
	}
	return otlploggrpc.New(ctx, options...)
}

func (s sender) points(ctx context.Context) (sdkmetric.Exporter, error) {
	if s.kind == "http" {
		compression := otlpmetrichttp.NoCompression
		if s.gzip {
			compression = otlpmetrichttp.GzipCompression
		}
		return otlpmetrichttp.New(ctx, otlpmetrichttp.WithEndpoint(s.address), otlpmetrichttp.WithInsecure(),
			otlpmetrichttp.WithHeaders(s.headers), otlpmetrichttp.WithCompression(compression))
	}
	options := []otlpmetricgrpc.Option{otlpmetricgrpc.WithEndpoint(s.address), otlpmetricgrpc.WithInsecure(),
		otlpmetricgrpc.WithHeaders(s.headers)}
	if s.gzip {
		options = append(options, otlpmetricgrpc.WithCompressor("gzip"))
	}
	return otlpmetricgrpc.New(ctx, options...)
}

func sendSpans(ctx context.Context, s sender, service *resource.Resource) {
	exporter, err := s.spans(ctx)
	check(err)
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(service))
	tracer := provider.Tracer("tests", trace.WithInstrumentationVersion("1.2"))
	ctx, parent := tracer.Start(ctx, "parent", trace.WithTimestamp(start))
	_, span := tracer.Start(ctx, "GET /cart", trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(start),
		trace.WithAttributes(attributes...), trace.WithLinks(trace.Link{SpanContext: parent.SpanContext()}))
	span.AddEvent("cache miss", trace.WithAttributes(attributes...), trace.WithTimestamp(start.Add(5)))
	span.SetStatus(codes.Error, "no tea")
	span.End(trace.WithTimestamp(start.Add(1_000_000_007)))
	parent.End(trace.WithTimestamp(start.Add(2_000_000_000)))
	check(provider.Shutdown(ctx))
}

func sendRecords(ctx context.Context, s sender, service *resource.Resource) {
	exporter, err := s.records(ctx)
	check(err)
	provider := sdklog.NewLoggerProvider(
		sdklog.WithProcessor(sdklog.NewBatchProcessor(exporter)), sdklog.WithResource(service))
	logger := provider.Logger("tests", log.WithInstrumentationVersion("1.2"))
	bodies := []attribute.Value{
		attribute.StringValue("tea is ready"),
		attribute.MapValue(attribute.Slice("deep", attribute.IntValue(1), attribute.StringValue("er")),
			attribute.ByteSlice("bytes", []byte{0, 255})),
	}
	for _, body := range bodies {
		var record log.Record
		record.SetTimestamp(start)
		record.SetObservedTimestamp(start.Add(1))
		record.SetSeverity(log.SeverityWarn2)
		record.SetSeverityText("warn")
		record.SetBody(body)
		record.AddAttributes(attributes...)
		logger.Emit(ctx, record)
	}
	check(provider.Shutdown(ctx))
}

func sendPoints(ctx context.Context, s sender, service *resource.Resource) {
	exporter, err := s.points(ctx)
	check(err)
	sizes := sdkmetric.NewView(sdkmetric.Instrument{Name: "sizes"}, sdkmetric.Stream{
		Aggregation: sdkmetric.AggregationBase2ExponentialHistogram{MaxSize: 160, MaxScale: 20}})
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithResource(service), sdkmetric.WithView(sizes),
		sdkmetric.WithReader(sdkmetric.NewPeriodicReader(exporter, sdkmetric.WithInterval(time.Hour))))
	meter := provider.Meter("tests", metric.WithInstrumentationVersion("1.2"))
	requests, err := meter.Int64Counter("requests", metric.WithUnit("1"))
	check(err)
	requests.Add(ctx, 3, metric.WithAttributes(attributes...))
	temperature, err := meter.Float64Gauge("temperature")
	check(err)
	temperature.Record(ctx, 81.5)
	for _, name := range []string{"latency", "sizes"} {
		histogram, err := meter.Float64Histogram(name)
		check(err)
		for _, value := range []float64{0.5, 7, 10_000} {
			histogram.Record(ctx, value)
		}
	}
	check(provider.Shutdown(ctx))
}

func main() {
	s := sender{kind: os.Args[1], address: os.Args[2], headers: map[string]string{}}
	for _, word := range os.Args[3:] {
		if name, value, found := strings.Cut(word, "="); found {
			s.headers[name] = value
		} else {
			s.gzip = word == "gzip"
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	service := resource.NewSchemaless(attribute.String("service.name", "checkout"))
	sendSpans(ctx, s, service)
	sendRecords(ctx, s, service)
	sendPoints(ctx, s, service)
}
