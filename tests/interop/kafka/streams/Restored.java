import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.streams.processor.StateRestoreListener;

/** Prints how much of which changelog was restored. */
final class Restored implements StateRestoreListener {
    @Override
    public void onRestoreStart(TopicPartition changelog, String store, long first, long end) {}

    @Override
    public void onBatchRestored(TopicPartition changelog, String store, long end, long count) {}

    @Override
    public void onRestoreEnd(TopicPartition changelog, String store, long total) {
        System.out.println("restored " + total);
    }
}
